//! The worked answers of 3-checkpoint, and all orders of up to seven attempts tried.

use proptest::prelude::*;
use tidegate_model::{AttemptId, Bandwidth, Bytes, DecisionSeq, GpuCount, JobId, Span, Timestamp};

use super::*;

const GB: u64 = 1_000_000_000;
const CAP: Bandwidth = Bandwidth(100 * GB);
const MAX_WAIT: Span = Span::minutes(10);

fn id(number: u64) -> AttemptId {
    AttemptId { job: JobId(number), number: 1 }
}

fn limits() -> Limits {
    Limits { cap: CAP, pool: Bandwidth(0), writers: 1000 }
}

/// An attempt with its GPUs and gigabytes, standing still since 0.
fn still(number: u64, gpus: u32, gigabytes: u64) -> Want {
    Want {
        who: id(number),
        urgency: Urgency::Preemption,
        gpus: GpuCount(gpus),
        bytes: Bytes(gigabytes * GB),
        own: CAP,
        asks: true,
        told: false,
        gang: None,
        since: Timestamp(0),
        record: DecisionSeq(number),
        overdue: false,
    }
}

/// One that trains until it is told, for a gang.
fn paced(want: Want, gang: u64, gpus: u32) -> Want {
    Want { asks: false, gang: Some((id(gang), GpuCount(gpus))), ..want }
}

/// A, B, C and D of the design page.
fn four() -> [Want; 4] {
    [still(1, 8, 100), still(2, 64, 400), still(3, 512, 4000), still(4, 16, 800)]
}

struct Plan {
    wants: Vec<Want>,
    slots: std::collections::BTreeMap<AttemptId, Slot>,
}

impl Plan {
    fn of(wants: impl IntoIterator<Item = Want>) -> Self {
        let wants = order(wants.into_iter().collect(), Timestamp(0), MAX_WAIT);
        Self { slots: schedule(Timestamp(0), limits(), Vec::new(), wants.clone()), wants }
    }

    fn order(&self) -> String {
        let mut all: Vec<_> = self.slots.iter().map(|(who, slot)| (slot.position, who)).collect();
        all.sort();
        let name = |who: &AttemptId| char::from(b'@' + u8::try_from(who.job.0).unwrap());
        all.into_iter().map(|(_, who)| name(who)).collect()
    }

    fn cost(&self, of: impl Fn(&Want, Slot) -> u64) -> u64 {
        let sum: u64 = self.wants.iter().map(|one| of(one, self.slots[&one.who])).sum();
        assert_eq!(sum % 1000, 0, "whole seconds");
        sum / 1000
    }

    /// GPU-seconds of those who stood still from 0 until they had written.
    fn held(&self) -> u64 {
        self.cost(|want, slot| u64::from(want.gpus.0) * slot.until.0)
    }

    /// GPU-seconds from each one's signal to the end of its writing.
    fn saving(&self) -> u64 {
        self.cost(|want, slot| u64::from(want.gpus.0) * (slot.until.0 - slot.from.0))
    }

    fn gang_starts(&self, gang: AttemptId) -> u64 {
        let of = |want: &&Want| want.gang.is_some_and(|(of, _)| of == gang);
        let ends = self.wants.iter().filter(of).map(|want| self.slots[&want.who].until.0);
        ends.max().unwrap()
    }

    /// GPU-seconds from each one's signal to its gang's start.
    fn idle(&self) -> u64 {
        self.cost(|want, slot| {
            let start = want.gang.map_or(slot.until.0, |(gang, _)| self.gang_starts(gang));
            u64::from(want.gpus.0) * (start - slot.from.0)
        })
    }

    /// GPU-seconds that the gangs wait.
    fn wait(&self) -> u64 {
        let mut gangs: Vec<_> = self.wants.iter().filter_map(|want| want.gang).collect();
        gangs.sort_unstable();
        gangs.dedup();
        let waits =
            gangs.into_iter().map(|(gang, gpus)| u64::from(gpus.0) * self.gang_starts(gang));
        waits.sum::<u64>() / 1000
    }
}

#[test]
fn who_stands_still_goes_by_smiths_rule() {
    let plan = Plan::of(four());
    assert_eq!((plan.order().as_str(), plan.held()), ("BCAD", 23_992));
}

#[test]
fn paced_signals_idle_their_victims_for_no_more_than_their_own_writing() {
    let alone = four().map(|want| Want { asks: false, ..want });
    assert_eq!(Plan::of(alone).saving(), 20_872);
}

#[test]
fn the_densest_victim_of_a_gang_is_told_last() {
    let plan = Plan::of(four().map(|want| paced(want, 9, 600)));
    assert_eq!((plan.order().as_str(), plan.idle()), ("DACB", 23_992));
}

#[test]
fn of_two_gangs_the_one_with_more_gpus_for_each_byte_is_first_and_whole() {
    let [a, b, c, d] = four();
    let plan = Plan::of([paced(a, 8, 520), paced(b, 9, 80), paced(c, 8, 520), paced(d, 9, 80)]);
    assert_eq!(plan.order(), "ACDB");
    assert_eq!((plan.wait(), plan.idle()), (25_560, 21_256));
}

#[test]
fn what_the_head_cannot_use_goes_to_the_next() {
    let own = [10, 80, 100, 20];
    let limited = four().into_iter().zip(own);
    let plan = Plan::of(limited.map(|(want, own)| Want { own: Bandwidth(own * GB), ..want }));
    let until: Vec<u64> = plan.slots.values().map(|slot| slot.until.0 / 1000).collect();
    assert_eq!(until, [54, 5, 44, 84]);
    assert_eq!(plan.held(), 24_624);
}

#[test]
fn a_small_jobs_victims_are_first_and_promised_instants_before_ratios() {
    let [a, b, c, d] = four();
    let a = Want { urgency: Urgency::Firm, ..paced(a, 7, 8) };
    let d = Want { urgency: Urgency::Firm, ..paced(d, 8, 16) };
    let c = Want { urgency: Urgency::Small, ..c };
    assert_eq!(Plan::of([b, d, c, a]).order(), "CADB");
}

#[test]
fn who_has_waited_long_goes_before_who_keeps_coming() {
    let [_, b, _, d] = four();
    let since = |minutes: u64| Timestamp(minutes * 60_000);
    let now = since(60);
    let first = |wants: Vec<Want>| order(wants, now, MAX_WAIT).first().unwrap().who;
    let fresh = Want { since: now, ..b };
    assert_eq!(first(vec![Want { since: since(55), ..d }, fresh]), b.who);
    assert_eq!(first(vec![Want { since: since(0), ..d }, fresh]), d.who);
}

#[test]
fn the_pool_is_lent_until_somebody_has_waited_too_long_and_then_comes_back() {
    let with_pool = Limits { pool: Bandwidth(10 * GB), ..limits() };
    let [a, b, c, _] = four();
    let writes = |want: Want, rate: u64, pooled| Writer {
        who: want.who,
        rate: Bandwidth(rate * GB),
        told: Bandwidth(rate * GB),
        own: want.own,
        asks: want.asks,
        pooled,
        left: want.bytes,
    };
    let admitted = |who: Want, rate: u64, pooled| {
        Some(Step::Admit { who: who.who, rate: Bandwidth(rate * GB), pooled })
    };
    let next = |writers: &[Writer], wants: &[Want]| {
        step(Timestamp(0), with_pool, writers, Line::of(wants, with_pool))
    };
    assert_eq!(next(&[], &[b]), admitted(b, 100, false), "lent");
    let late = Want { overdue: true, ..c };
    let lower = Some(Step::Lower { who: b.who, rate: Bandwidth(90 * GB) });
    assert_eq!(next(&[writes(b, 100, false)], &[late]), lower, "it comes back");
    let told = Writer { rate: CAP, ..writes(b, 90, false) };
    assert_eq!(next(&[told], &[late]), None, "when its job has heard of it");
    let heedless = Writer { asks: false, ..writes(b, 100, false) };
    assert_eq!(next(&[heedless], &[late]), None, "or with its end");
    let fresh = Want { overdue: false, ..a };
    assert_eq!(next(&[], &[fresh, late]), admitted(a, 90, false), "the rest goes on in its order");
    assert_eq!(next(&[writes(a, 90, false)], &[late]), admitted(c, 10, true));
    let pooled = writes(c, 10, true);
    assert_eq!(next(&[pooled], &[a]), admitted(a, 90, false));
    let raised = Some(Step::Raise { who: c.who, rate: CAP });
    assert_eq!(next(&[pooled], &[]), raised, "nobody else wants it");
}

#[test]
fn under_a_lower_cap_who_came_last_writes_less_and_nobody_more_until_that_is_told() {
    let [a, b, c, _] = four();
    let half = Limits { cap: Bandwidth(CAP.0 / 2), ..limits() };
    let writes = |want: Want, reckoned: u64, told: u64| Writer {
        who: want.who,
        rate: Bandwidth(reckoned * GB),
        told: Bandwidth(told * GB),
        own: CAP,
        asks: true,
        pooled: false,
        left: want.bytes,
    };
    let next = |writers: &[Writer]| {
        step(Timestamp(0), half, writers, Line::of(&[Want { own: Bandwidth(GB), ..c }], half))
    };
    let lower = |want: Want, rate| Some(Step::Lower { who: want.who, rate: Bandwidth(rate) });
    assert_eq!(next(&[writes(a, 60, 60), writes(b, 40, 40)]), lower(b, CAP.0 / 32), "its part");
    let rest = CAP.0 / 2 - CAP.0 / 32;
    let b_told = Writer { told: Bandwidth(CAP.0 / 32), ..writes(b, 40, 0) };
    assert_eq!(next(&[writes(a, 60, 60), b_told]), lower(a, rest));
    let a_told = Writer { told: Bandwidth(rest), ..writes(a, 60, 0) };
    assert_eq!(next(&[a_told, b_told]), None, "what was is reckoned until they are told");
    let b_alone = Writer { rate: b_told.told, ..b_told };
    let raised = Some(Step::Raise { who: b.who, rate: Bandwidth(CAP.0 / 2) });
    assert_eq!(next(&[b_alone]), raised);
}

#[test]
fn nobody_who_fits_keeps_the_one_before_it_waiting() {
    let [a, b, c, d] = four();
    let own = |want: Want, own: u64| Want { asks: false, own: Bandwidth(own * GB), ..want };
    let b = Writer {
        who: b.who,
        rate: Bandwidth(80 * GB),
        told: Bandwidth(80 * GB),
        own: Bandwidth(80 * GB),
        asks: false,
        pooled: false,
        left: b.bytes,
    };
    let next = |wants: &[Want]| step(Timestamp(0), limits(), &[b], Line::of(wants, limits()));
    // B writes for 5 s; until then C, which takes everything, has to wait.
    let longer = own(d, 20);
    assert_eq!(next(&[own(c, 100), longer]), None);
    let shorter = Want { bytes: Bytes(90 * GB), ..longer };
    let admitted = Some(Step::Admit { who: d.who, rate: Bandwidth(20 * GB), pooled: false });
    assert_eq!(next(&[own(c, 100), shorter]), admitted);
    assert_eq!(next(&[own(c, 80), longer]), admitted, "there is room for both then");
    assert_eq!(next(&[own(c, 80), own(a, 30)]), None, "above what is free");
}

/// Everybody in this order, one at a time at the whole rate.
fn serial(wants: &[Want]) -> Plan {
    let (mut at, mut slots) = (Timestamp(0), std::collections::BTreeMap::new());
    for (position, want) in wants.iter().enumerate() {
        let until = at.plus(CAP.takes(want.bytes));
        slots.insert(want.who, Slot { from: at, until, position });
        at = until;
    }
    Plan { wants: wants.to_vec(), slots }
}

/// All orders.
fn orders(wants: &[Want]) -> Vec<Vec<Want>> {
    if wants.len() < 2 {
        return vec![wants.to_vec()];
    }
    let with_first = |first: usize| {
        let mut rest = wants.to_vec();
        let head = rest.remove(first);
        orders(&rest).into_iter().map(move |mut tail| {
            tail.insert(0, head);
            tail
        })
    };
    (0..wants.len()).flat_map(with_first).collect()
}

fn some_wants(most: usize) -> impl Strategy<Value = Vec<Want>> {
    let one = (1_u32..=64, 1_u64..=60);
    let with_ids = |all: Vec<(u32, u64)>| {
        let numbered = (1_u64..).zip(all);
        numbered.map(|(number, (gpus, tenths))| still(number, gpus * 8, tenths * 100)).collect()
    };
    prop::collection::vec(one, 1..=most).prop_map(with_ids)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn no_order_of_up_to_seven_costs_less_than_the_gates(wants in some_wants(7)) {
        let best = |wants: &[Want], cost: fn(&Plan) -> u64| {
            orders(wants).iter().map(|order| cost(&serial(order))).min()
        };
        prop_assert_eq!(Some(Plan::of(wants.clone()).held()), best(&wants, Plan::held));
        let gang: Vec<_> = wants.iter().map(|want| paced(*want, 99, 600)).collect();
        prop_assert_eq!(Some(Plan::of(gang.clone()).idle()), best(&gang, Plan::idle));
        let of_gang = |want: &Want| 90 + want.who.job.0 % 3;
        let gangs: Vec<_> = wants
            .iter()
            .map(|want| {
                let all = wants.iter().filter(|other| of_gang(other) == of_gang(want));
                paced(*want, of_gang(want), all.map(|one| one.gpus.0).sum())
            })
            .collect();
        prop_assert_eq!(Some(Plan::of(gangs.clone()).wait()), best(&gangs, Plan::wait));
    }

    #[test]
    fn what_may_be_written_never_exceeds_the_cap_whatever_comes(
        wants in some_wants(24),
        owns in prop::collection::vec((1_u64..=150, any::<bool>(), 0_u8..4), 24),
        pool in 0_u64..=20,
        writers in 1_usize..=8,
    ) {
        let limits = Limits { pool: Bandwidth(pool * GB), writers, ..limits() };
        let differ = |(want, (own, asks, late)): (Want, &(u64, bool, u8))| Want {
            own: Bandwidth(own * GB),
            asks: *asks,
            overdue: *late == 0,
            ..want
        };
        let wants: Vec<_> = wants.into_iter().zip(&owns).map(differ).collect();
        let mut ordered = order(wants, Timestamp(0), MAX_WAIT);
        let (mut now, mut live) = (Timestamp(0), Vec::<Writer>::new());
        while !(ordered.is_empty() && live.is_empty()) {
            match step(now, limits, &live, Line::of(&ordered, limits)) {
                Some(Step::Admit { who, rate, pooled }) => {
                    let place = ordered.iter().position(|want| want.who == who).unwrap();
                    let Want { own, asks, bytes, .. } = ordered.remove(place);
                    prop_assert!(rate <= own);
                    live.push(Writer { who, rate, told: rate, own, asks, pooled, left: bytes });
                    let ordinary = live.iter().filter(|one| !one.pooled).count();
                    prop_assert!(pooled || ordinary <= writers, "{live:?}");
                }
                Some(Step::Lower { who, rate }) => {
                    let needed = ordered.iter().any(|want| want.may_use(limits.pool));
                    prop_assert!(needed, "the cap stays as it is, and nobody needs the pool");
                    let one = live.iter_mut().find(|one| one.who == who).unwrap();
                    prop_assert!(one.asks && rate < one.rate);
                    (one.rate, one.told) = (rate, rate);
                }
                Some(Step::Raise { who, rate }) => {
                    let one = live.iter_mut().find(|one| one.who == who).unwrap();
                    prop_assert!(one.asks && rate > one.rate && rate <= one.own);
                    (one.rate, one.told, one.pooled) = (rate, rate, false);
                }
                None => {
                    prop_assert!(!live.is_empty(), "nobody writes and {ordered:?} wait");
                    now = live.iter().map(|one| one.ends(now)).min().unwrap();
                    let (_, first) = live.iter().enumerate()
                        .map(|(place, one)| (one.ends(now), place)).min().unwrap();
                    live.remove(first);
                }
            }
            let used: Bandwidth = live.iter().map(|one| one.rate).sum();
            prop_assert!(used <= CAP, "{live:?}");
            let pooled: Bandwidth = live.iter().filter(|one| one.pooled).map(|one| one.rate).sum();
            prop_assert!(pooled <= limits.pool);
        }
    }
}
