//! What incidents come to, by the table that is shipped.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use proptest::prelude::*;
use tidegate_health::{
    Action, Class, Code, Context, Holder, Incident, Own, OwnAct, Past, PciAddress, Table, Target,
    Verdict, judge, remembered, signal,
};
use tidegate_model::{AttemptId, JobId, Span, Timestamp, UserId};

fn table() -> &'static Table {
    static TABLE: LazyLock<Table> = LazyLock::new(|| Table::shipped().expect("it is one"));
    &TABLE
}

fn gpu(number: u8) -> PciAddress {
    format!("0000:{number:02x}:00").parse().expect("an address")
}

fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1000)
}

/// Lines of the log, each with its second.
fn incident(lines: &[(u64, &str)]) -> Incident {
    let (table, mut incident) = (table(), Incident::default());
    for (second, line) in lines {
        let signal = signal(line).expect("a line that can be read").expect("about a GPU");
        incident.note(table, at(*second), &signal, line);
    }
    incident
}

fn judged(lines: &[(u64, &str)], context: &Context) -> Vec<Verdict> {
    judge(table(), &incident(lines), context)
}

/// The worst verdict.
fn worst(lines: &[(u64, &str)], context: &Context) -> (Target, Class, Action) {
    let verdicts = judged(lines, context);
    let first = verdicts.first().expect("there is one");
    (first.target, first.class, first.action)
}

const LOST: &str = "NVRM: Xid (PCI:0000:03:00): 79, pid=7, name=x, GPU has fallen off the bus.";
const FAULT: &str = "NVRM: Xid (PCI:0000:03:00): 31, pid=7, name=x, MMU Fault";
const KILLED: &str = "NVRM: Xid (PCI:0000:03:00): 45, pid=7, name=x, Ch 00000001";
const ASKS_RESET: &str = "NVRM: Xid (PCI:0000:03:00): 154, pid=7, name=x, GPU recovery action changed from \
                          0x0 (None) to 0x1 (GPU Reset Required)";
const SWITCH: &str =
    "nvidia-nvswitch1: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 28 LTSSM Fault Up";

fn holder(user: u32, from: u64, until: Option<u64>) -> Holder {
    Holder {
        attempt: AttemptId { job: JobId(u64::from(user)), number: 1 },
        user: UserId(user),
        gpus: vec![gpu(3)],
        from: at(from),
        until: until.map(at),
    }
}

#[test]
fn a_gpu_that_is_lost_takes_its_node_and_is_not_reset_though_it_asks_for_that() {
    let lost = [(1, LOST), (2, ASKS_RESET)];
    assert_eq!(worst(&lost, &Context::default()), (Target::Node, Class::Fatal, Action::Reboot));
}

#[test]
fn what_a_program_did_is_told_to_whoever_had_the_gpu() {
    let holders = vec![holder(1, 0, Some(9)), holder(2, 20, None)];
    let context = Context { holders, ..Context::default() };
    let verdicts = judged(&[(10, FAULT)], &context);
    assert_eq!(verdicts.len(), 1);
    assert_eq!(
        (verdicts[0].class, verdicts[0].target),
        (Class::Application, Target::Device(gpu(3)))
    );
    assert_eq!(verdicts[0].attempts, [context.holders[0].attempt]);
    assert_eq!(verdicts[0].evidence, FAULT);
}

#[test]
fn a_gpu_on_which_work_of_three_users_failed_in_a_day_is_degraded_unless_it_fails_elsewhere_too() {
    let before = |user: u32, hours_ago: u64| Past {
        at: Timestamp(at(100_000).0 - Span::hours(hours_ago).0),
        device: gpu(3),
        code: Code::Xid(31),
        link: None,
        users: BTreeSet::from([UserId(user)]),
    };
    let context = |past: Vec<Past>| Context {
        holders: vec![holder(3, 99_000, None)],
        past,
        ..Context::default()
    };
    let class = |context: &Context| worst(&[(100_000, FAULT)], context).1;
    let three = context(vec![before(1, 23), before(2, 1)]);
    assert_eq!(class(&three), Class::Degraded);
    assert_eq!(class(&context(vec![before(1, 25), before(2, 1)])), Class::Application);
    assert_eq!(class(&context(vec![before(2, 2), before(2, 1)])), Class::Application);
    let fail_elsewhere = BTreeSet::from([UserId(3)]);
    assert_eq!(class(&Context { fail_elsewhere, ..three }), Class::Application);
}

#[test]
fn what_our_own_kill_makes_is_ours_and_what_comes_long_after_it_is_not() {
    let act = |second| OwnAct { what: Own::Kill, at: at(second), gpus: vec![gpu(3)] };
    let context = Context { own: vec![act(100)], ..Context::default() };
    let class = |second: u64, context: &Context| worst(&[(second, KILLED)], context).1;
    assert_eq!([class(101, &context), class(185, &context)], [Class::Harmless; 2]);
    assert_eq!([class(60, &context), class(300, &context)], [Class::Application; 2]);
    let reset = OwnAct { what: Own::Reset, ..act(100) };
    assert_eq!(class(101, &Context { own: vec![reset], ..Context::default() }), Class::Application);
    // A fault that comes with it is no less for it.
    let with = worst(&[(101, KILLED), (102, LOST)], &context);
    assert_eq!(with.1, Class::Fatal);
}

#[test]
fn a_switch_that_names_a_link_counts_only_together_with_a_gpu_that_failed() {
    assert_eq!(worst(&[(1, SWITCH)], &Context::default()).1, Class::Harmless);
    let both = judged(&[(1, SWITCH), (2, LOST)], &Context::default());
    assert!(both.iter().all(|one| one.class >= Class::Degraded), "{both:?}");
    let link = "NVRM: Xid (PCI:0000:03:00): 74, pid=7, NVLink: fatal error detected on link 6";
    assert_eq!(worst(&[(1, link), (2, SWITCH)], &Context::default()).1, Class::Harmless);
    let often = [(1, link), (2, SWITCH), (50, link)];
    assert_eq!(worst(&often, &Context::default()).1, Class::Fatal);
}

#[test]
fn the_other_end_of_a_link_is_blamed_where_it_is_known() {
    let line = format!(
        "NVRM: Xid (PCI:0000:03:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 5 ({:#010x} 0x0)",
        0x20 << 20 | 17
    );
    let lines = [(1, line.as_str())];
    let (_, class, _) = worst(&lines, &Context::default());
    assert_eq!(class, Class::Unknown, "told, and nothing drains");
    let peers = [((gpu(3), 5), gpu(4))].into_iter().collect();
    let (target, class, _) = worst(&lines, &Context { peers, ..Context::default() });
    assert_eq!((target, class), (Target::Device(gpu(4)), Class::Degraded));
}

#[test]
fn a_link_that_fails_twice_in_a_day_is_degraded_and_once_in_many_lines_is_once() {
    let line = "NVRM: Xid (PCI:0000:03:00): 74, pid=7, NVLink: fatal error detected on link 6";
    let class =
        |lines: &[(u64, &str)], past| worst(lines, &Context { past, ..Context::default() }).1;
    assert_eq!(class(&[(10, line), (11, line), (12, line)], Vec::new()), Class::Harmless);
    assert_eq!(class(&[(10, line), (60, line)], Vec::new()), Class::Degraded);
    let past = remembered(table(), &incident(&[(10, line)]), &Context::default());
    assert_eq!(class(&[(9000, line)], past), Class::Degraded);
}

#[test]
fn what_a_gpu_asks_for_counts_if_it_is_more_than_its_errors_and_silence_is_not_nothing() {
    let (table, line) =
        (table(), "NVRM: Xid (PCI:0000:03:00): 109, pid=7, name=x, CTX SWITCH TIMEOUT");
    let with = |value: Option<Option<u32>>| {
        let mut incident = incident(&[(1, line)]);
        if let Some(value) = value {
            incident.note_recovery(table, at(2), gpu(3), value);
        }
        judge(table, &incident, &Context::default())[0].class
    };
    assert_eq!(with(None), Class::Application, "an old driver does not say");
    assert_eq!(with(Some(Some(0))), Class::Application);
    assert_eq!(with(Some(Some(1))), Class::Fatal);
    assert_eq!(with(Some(Some(77))), Class::Degraded);
    assert_eq!(with(Some(None)), Class::Unknown);
}

#[test]
fn a_storm_of_lines_is_one_incident_with_a_count() {
    let (table, mut incident) = (table(), Incident::default());
    for number in 0..100_000_u64 {
        let line = format!(
            "NVRM: Xid (PCI:0000:{:02x}:00): 95, pid={number}, Uncontained ECC error {number}",
            number % 8
        );
        let signal = signal(&line).unwrap().unwrap();
        assert!(incident.goes_on_at(table, Timestamp(number)));
        incident.note(table, Timestamp(number), &signal, &line);
    }
    let verdicts = judge(table, &incident, &Context::default());
    assert_eq!((verdicts.len(), incident.lines()), (8, 100_000));
    assert_eq!(verdicts.iter().map(|one| one.count).sum::<u64>(), 100_000);
    assert!(format!("{incident:?}").len() < 20_000, "what is kept does not grow");
    assert!(!incident.goes_on_at(table, at(100 + 181)));
}

/// Codes of programs, and what is harmless, of three GPUs.
const APPLICATION: [u32; 24] = [
    8, 11, 13, 14, 25, 31, 32, 37, 38, 43, 44, 45, 60, 63, 66, 68, 69, 77, 80, 92, 108, 109, 137,
    141,
];

fn some_line() -> impl Strategy<Value = (u64, String)> {
    let codes = prop::sample::select(vec![
        13_u32, 31, 43, 45, 48, 63, 64, 74, 79, 94, 95, 109, 110, 119, 145, 149, 154, 155, 999,
    ]);
    (0..400_u64, codes, 0..3_u8, 0..4_u32).prop_map(|(second, code, device, more)| {
        let words = format!("link 6 (0x{:08x} 0x{more:x}) to 0x{more:x}", more << 20 | 17);
        (second, format!("NVRM: Xid (PCI:0000:{device:02x}:00): {code}, pid={more}, x {words}"))
    })
}

fn of(lines: &[(u64, String)]) -> Incident {
    let lines: Vec<_> = lines.iter().map(|(at, line)| (*at, line.as_str())).collect();
    incident(&lines)
}

fn some_context() -> impl Strategy<Value = Context> {
    prop::collection::vec((0..400_u64, 0..3_u8), 0..4).prop_map(|kills| Context {
        own: kills
            .into_iter()
            .map(|(second, device)| OwnAct {
                what: Own::Kill,
                at: at(second),
                gpus: vec![gpu(device)],
            })
            .collect(),
        ..Context::default()
    })
}

proptest! {
    #[test]
    fn programs_alone_drain_nothing(
        lines in prop::collection::vec((0..10_000_u64, prop::sample::select(APPLICATION.to_vec()), 0..3_u8), 1..60)
    ) {
        let lines: Vec<_> = lines.into_iter().map(|(second, code, device)| {
            (second, format!("NVRM: Xid (PCI:0000:{device:02x}:00): {code}, pid=1, name=x, words"))
        }).collect();
        let verdicts = judge(table(), &of(&lines), &Context::default());
        prop_assert!(verdicts.iter().all(|one| one.class < Class::Degraded), "{verdicts:?}");
    }

    #[test]
    fn the_order_in_which_signals_of_an_incident_come_changes_nothing(
        lines in prop::collection::vec(some_line(), 1..30).prop_shuffle(),
        context in some_context(),
    ) {
        let mut sorted = lines.clone();
        sorted.sort();
        let (one, other) = (of(&lines), of(&sorted));
        prop_assert_eq!(judge(table(), &one, &context), judge(table(), &other, &context));
        prop_assert_eq!(remembered(table(), &one, &context), remembered(table(), &other, &context));
    }

    #[test]
    fn more_evidence_never_makes_a_fatal_verdict_less(
        lines in prop::collection::vec(some_line(), 2..30),
        context in some_context(),
    ) {
        let fewer = judge(table(), &of(&lines[1..]), &context);
        let more = judge(table(), &of(&lines), &context);
        for fatal in fewer.iter().filter(|one| one.class == Class::Fatal) {
            let still = more.iter().find(|one| one.target == fatal.target).unwrap();
            prop_assert!(still.class == Class::Fatal && still.action >= fatal.action, "{still:?}");
        }
    }
}
