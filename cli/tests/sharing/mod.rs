//! Budgets, what is changed about waiting jobs, drains, policy.

use serde_json::json;
use tidegate_proto::v1::change_account_request::{
    Answer, Ask, Change, Delete, SetBudget, SetRole, Transfer,
};
use tidegate_proto::{amount_bytes, v1};
use tonic::Status;

use super::support::{Asked, Coordinator, Script};
use super::told;

const KEY: &str = "01JQ0000000000000000000001";

fn hours(count: i128) -> Vec<u8> {
    amount_bytes(count * 3_600_000_000)
}

fn share(percent: u32) -> Option<v1::Size> {
    Some(v1::Size { size: Some(v1::size::Size::ShareMillionths(percent * 10_000)) })
}

fn changing() -> Coordinator {
    Coordinator::with(Script { changed: true, ..Script::default() })
}

/// Runs a line of words, and says what it was that the coordinator was asked for last.
pub fn run(coordinator: &Coordinator, line: &str) -> (super::Ran, Option<Asked>) {
    let ran = coordinator.tidegate(&line.split(' ').collect::<Vec<_>>());
    let asked = coordinator.script().asked.last().cloned();
    (ran, asked)
}

fn check_change(line: &str, change: Change, words: &str) {
    let (ran, asked) = run(&changing(), line);
    assert_eq!(ran, told(0, &format!("{words}\n"), ""), "{line}");
    assert_eq!(asked, Some(Asked::Account(change)), "{line}");
    let (ran, _) = run(&changing(), &format!("{line} --json"));
    assert_eq!(ran.json(), json!({ "changed": true }), "{line}");
}

#[test]
fn each_change_of_a_budget_is_asked_as_it_was_given() {
    let (account, size) = ("olmo/sft".to_owned(), share(30));
    check_change(
        "budget set olmo/sft 30% --now",
        Change::Set(SetBudget { account: account.clone(), size, now: true }),
        "olmo/sft is given 30%",
    );
    let size = Some(v1::Size { size: Some(v1::size::Size::Fixed(hours(1200))) });
    check_change(
        "budget set olmo/sft 1200h",
        Change::Set(SetBudget { account: account.clone(), size, now: false }),
        "olmo/sft is given 1200.0 GPU-h",
    );
    let (from, to, amount) = ("olmo".to_owned(), account.clone(), hours(100));
    check_change(
        &format!("budget transfer olmo olmo/sft 100 --key {KEY}"),
        Change::Transfer(Transfer { from, to, amount, permanent: false, key: KEY.into() }),
        "100.0 GPU-h of olmo go to olmo/sft, for one window, 7d",
    );
    check_change(
        "budget delete olmo/sft",
        Change::Delete(Delete { account: account.clone() }),
        "olmo/sft is deleted; what it spent stays with its parent",
    );
    let (uid, manager, none) = (1234, v1::Role::Manager.into(), v1::Role::Unspecified.into());
    check_change(
        "role set root 1234 manager",
        Change::SetRole(SetRole { account: String::new(), uid, role: manager }),
        "1234 is manager of root",
    );
    check_change(
        "role set olmo/sft 1234 none",
        Change::SetRole(SetRole { account, uid, role: none }),
        "1234 has no role of its own in olmo/sft",
    );
}

#[test]
fn a_change_that_was_so_already_says_so_and_a_refused_one_is_told_in_the_coordinators_words() {
    let (ran, _) = run(&Coordinator::with(Script::default()), "budget set olmo 30%");
    assert_eq!(ran, told(0, "olmo is given 30% (it was so already)\n", ""));
    let words = "children may not sum above their parent";
    let refusal = Some(Status::invalid_argument(words));
    let coordinator = Coordinator::with(Script { refusal, ..Script::default() });
    let (ran, _) = run(&coordinator, "budget set olmo 90%");
    assert_eq!(ran, told(2, "", &format!("error: {words}\n")));
    let (ran, _) = run(&coordinator, "budget approve olmo no-such-user-here");
    let expected = "error: no user of this machine is named \"no-such-user-here\"; a uid is \
                    accepted too\n";
    assert_eq!(ran, told(3, "", expected));
}

#[test]
fn what_was_made_by_a_try_whose_answer_was_lost_is_told_as_made() {
    let check = |line: &str, words: &str, document: serde_json::Value| {
        for json in [false, true] {
            let change_misses = [Status::unavailable("restarting")].into();
            let script = Script { change_misses, tasks_lost: 3, ..Script::default() };
            let coordinator = Coordinator::with(script);
            if json {
                let (ran, _) = run(&coordinator, &format!("{line} --json"));
                assert_eq!(ran.json(), document, "{line}");
            } else {
                let (ran, _) = run(&coordinator, line);
                assert_eq!(ran, told(0, &format!("{words}\n"), ""), "{line}");
            }
        }
    };
    let changed = json!({ "changed": true });
    check("budget set olmo 30%", "olmo is given 30%", changed.clone());
    let words = "olmo is deleted; what it spent stays with its parent";
    check("budget delete olmo", words, changed);
    let words = "40% are asked for olmo; a manager above it answers";
    let document = json!({ "changed": true, "replaced": null });
    check("budget request olmo 40% --reason deadline", words, document);
    let document = json!({ "node": "n1", "tasks_lost": null });
    check("node lost n1", "n1 is declared lost, and what it held with it", document);
    let coordinator = Coordinator::with(Script { tasks_lost: 3, ..Script::default() });
    let (ran, _) = run(&coordinator, "node lost n1");
    assert_eq!(ran, told(0, "n1 is declared lost, and 3 tasks with it\n", ""));
}

#[test]
fn a_request_says_which_it_takes_the_place_of() {
    let ask = Ask { account: "olmo/sft".into(), size: share(40), reason: "deadline".into() };
    let line = "budget request olmo/sft 40% --reason deadline";
    let words = "40% are asked for olmo/sft; a manager above it answers";
    let (ran, asked) = run(&changing(), line);
    assert_eq!(ran, told(0, &format!("{words}\n"), ""));
    assert_eq!(asked, Some(Asked::Account(Change::Ask(ask))));
    let old = v1::AskView { uid: 1234, size: share(20), reason: "x".into(), at_ms: 7 };
    let script = Script { changed: true, replaced: Some(old), ..Script::default() };
    let coordinator = Coordinator::with(script);
    let (ran, _) = run(&coordinator, line);
    let expected = format!("{words}; it replaces your request for 20% of ");
    assert!(ran.stdout.starts_with(&expected) && ran.stdout.ends_with(" ago\n"), "{ran:?}");
    let document = run(&coordinator, &format!("{line} --json")).0.json();
    assert_eq!(document["replaced"]["size"], json!({ "share_millionths": 200_000 }));
}

#[test]
fn an_answer_names_the_size_that_was_read_and_answers_no_other() {
    let mut accounts = accounts();
    let reason = "deadline".to_owned();
    accounts.accounts = accounts.accounts.split_off(1);
    accounts.accounts[0].asks = vec![v1::AskView { uid: 1234, size: share(40), reason, at_ms: 7 }];
    let coordinator = Coordinator::with(Script { changed: true, accounts, ..Script::default() });
    let answer = |grant| {
        let (account, size) = ("sft".to_owned(), share(40));
        Some(Asked::Account(Change::Answer(Answer { account, asked_by_uid: 1234, grant, size })))
    };
    let (ran, asked) = run(&coordinator, "budget approve sft 1234");
    assert_eq!(ran, told(0, "sft is given 40%, as 1234 asked\n", ""));
    assert_eq!(asked, answer(true));
    let (ran, asked) = run(&coordinator, "budget decline sft 1234 --size 40%");
    assert_eq!(ran, told(0, "40%, which 1234 asked for sft, is declined\n", ""));
    assert_eq!(asked, answer(false));
    let (ran, asked) = run(&coordinator, "budget approve sft 1234 --size 30%");
    let words = "error: 1234 asks for 40% in sft, and not for 30%\n";
    assert_eq!(ran, told(2, "", words));
    assert_eq!(asked, Some(Asked::Accounts("sft".into())), "it was only read");
    let (ran, _) = run(&coordinator, "budget approve sft 7");
    assert_eq!(ran, told(2, "", "error: 7 has asked for nothing in sft\n"));
}

#[test]
fn a_transfer_is_asked_again_under_its_key_until_there_is_an_answer() {
    let change_misses = [Status::unavailable("restarting")].into();
    let coordinator = Coordinator::with(Script { change_misses, ..Script::default() });
    let (ran, _) = run(&coordinator, "budget transfer a b 1h");
    assert_eq!(ran, told(0, "1.0 GPU-h of a go to b, for one window, 7d\n", ""));
    let asked = coordinator.script().asked.clone();
    let [Asked::Account(Change::Transfer(first)), Asked::Account(Change::Transfer(second))] =
        &asked[..]
    else {
        panic!("{asked:?}");
    };
    assert_eq!((first, first.key.len()), (second, 26));
}

#[test]
fn nobody_is_given_a_role_and_wrong_usage_is_one_line() {
    let coordinator = changing();
    for user in ["4294967295", "-1", "99999999999"] {
        let (ran, _) = run(&coordinator, &format!("role set root -- {user} member"));
        let words = format!(
            "error: {user} is no user's uid: 0 to 4294967294 or a user's name is accepted\n"
        );
        assert_eq!(ran, told(2, "", &words));
    }
    let (ran, _) = run(&coordinator, "role set root");
    let words = "error: the following required arguments were not provided: <USER> <ROLE>; usage: \
                 tidegate role set <ACCOUNT> <USER> <ROLE> (--help tells more)\n";
    assert_eq!(ran, told(2, "", words));
    assert!(coordinator.script().asked.is_empty());
}

fn accounts() -> v1::ListAccountsReply {
    let root = v1::AccountView {
        account: "root".into(),
        size: share(100),
        budget: hours(2000),
        limit: hours(1900),
        ..v1::AccountView::default()
    };
    let sft = v1::AccountView {
        account: "sft".into(),
        parent: "root".into(),
        leaf: true,
        size: share(30),
        since_ms: 7,
        stated: hours(600),
        budget: hours(600),
        limit: hours(570),
        claim: hours(57),
        charged: hours(57),
        users: vec![v1::UserUse {
            uid: 3_999_999_999,
            claim: hours(57),
            charged: hours(57),
            small_use: hours(2),
            ..v1::UserUse::default()
        }],
        roles: vec![v1::RoleView { uid: 3_999_999_999, role: v1::Role::Member.into() }],
        edits: vec![v1::EditView { at_ms: 7, by_uid: 0, size: share(30), now: false }],
        ..v1::AccountView::default()
    };
    v1::ListAccountsReply { accounts: vec![root, sft], at_ms: 8, more: false }
}

#[test]
fn accounts_are_a_table_for_people_and_exact_for_programs() {
    let coordinator = Coordinator::with(Script { accounts: accounts(), ..Script::default() });
    let (ran, asked) = run(&coordinator, "accounts");
    let table = "\
ACCOUNT  BUDGET  SHARE   LIMIT  CHARGED  PLEDGED  CLAIM  RATIO  FREE  SMALL
root     2000.0      -  1900.0      0.0      0.0    0.0   0.0%   0.0    2.0
  sft     600.0    30%   570.0     57.0      0.0   57.0  10.0%   0.0    2.0
";
    assert_eq!(ran, told(0, table, ""));
    assert_eq!(asked, Some(Asked::Accounts(String::new())));
    let (ran, asked) = run(&coordinator, "accounts sft --json");
    assert_eq!(asked, Some(Asked::Accounts("sft".into())));
    let hour = 3_600_000_000_u64;
    let expected = json!({
        "account": "sft", "parent": "root", "leaf": true, "size": { "share_millionths": 300_000 },
        "since_ms": 7, "stated_gpu_us": 600 * hour, "cut_left_gpu_us": 0,
        "budget_gpu_us": 600 * hour, "limit_gpu_us": 570 * hour, "charged_gpu_us": 57 * hour,
        "pledged_gpu_us": 0, "claim_gpu_us": 57 * hour, "free_gpu_us": 0,
        "small_use_gpu_us": 2 * hour, "small_allowance_gpu_us": 0, "scaled": false,
        "over_since_ms": null, "elder": null,
        "users": [{
            "user": "3999999999", "uid": 3_999_999_999_u32, "charged_gpu_us": 57 * hour,
            "pledged_gpu_us": 0, "claim_gpu_us": 57 * hour, "free_gpu_us": 0,
            "small_use_gpu_us": 2 * hour
        }],
        "transfers": [],
        "roles": [{ "user": "3999999999", "uid": 3_999_999_999_u32, "role": "member" }],
        "edits": [{
            "at_ms": 7, "by": "root", "by_uid": 0, "size": { "share_millionths": 300_000 },
            "now": false
        }],
        "requests": [],
    });
    let document = ran.json();
    assert_eq!((&document["at_ms"], &document["accounts"][1]), (&json!(8), &expected));
    let (ran, _) = run(&coordinator, "role list --json");
    let roles = json!([{
        "account": "sft", "user": "3999999999", "uid": 3_999_999_999_u32, "role": "member"
    }]);
    assert_eq!(ran.json(), json!({ "roles": roles }));
    let (ran, asked) = run(&coordinator, "budget show root --json");
    assert_eq!(asked, Some(Asked::Accounts(String::new())));
    assert_eq!(ran.json()["account"], "root");
}

#[test]
fn what_is_changed_about_a_waiting_job_is_told_and_asked() {
    use v1::JobChange::{AllowElder, DropReservation, Park, Release};
    for (line, change, words) in [
        ("park job-7", Park, "job-7 is parked; `tidegate release job-7` lets it start again"),
        ("release job-7", Release, "job-7 is released: it waits for its turn"),
        ("elder job-7", AllowElder, "job-7 may become its account's elder"),
        ("reservation drop job-7", DropReservation, "job-7 has no firm reservation any more"),
    ] {
        let (ran, asked) = run(&changing(), line);
        assert_eq!(ran, told(0, &format!("{words}\n"), ""));
        assert_eq!(asked, Some(Asked::Job("job-7".into(), change)));
        let unchanged = Coordinator::with(Script::default());
        let (ran, _) = run(&unchanged, line);
        assert_eq!(ran, told(0, &format!("{words} (it was so already)\n"), ""));
        let (ran, _) = run(&unchanged, &format!("{line} --json"));
        assert_eq!(ran.json(), json!({ "job": "job-7", "changed": false }));
    }
}

#[test]
fn a_drain_names_who_is_protected_beyond_the_wanted_instant() {
    let now = u64::try_from(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis());
    let now = now.unwrap();
    let beyond = v1::ProtectedAttempt {
        attempt: "job-7.2".into(),
        uid: 3_999_999_999,
        until_ms: now + 2 * 3_600_000 + 15_000,
    };
    let drained = v1::DrainReply {
        tasks_left: 2,
        saves_from_ms: now + 2 * 3_600_000 + 15_000,
        // A bound is told rounded up.
        empty_by_ms: now + 3 * 3_600_000 - 15_000,
        protected_beyond: vec![beyond],
    };
    let coordinator = Coordinator::with(Script { drained, ..Script::default() });
    let (ran, asked) = run(&coordinator, "drain gpu-01 --reason fan --by 1h");
    let expected = "\
gpu-01 is draining: 2 tasks left; the last protection there ends in 2h, empty in 3h at the latest
  job-7.2 of 3999999999 is protected beyond that: 2h more
";
    assert_eq!(ran, told(0, expected, ""));
    let Some(Asked::Drain(asked)) = asked else { panic!("{asked:?}") };
    let wanted = asked.wanted_by_ms.unwrap();
    assert!((now + 3_600_000..now + 3_660_000).contains(&wanted), "{wanted} at {now}");
    let line = "drain gpu-01 --reason fan --by 2026-03-01T00:00:00Z --json";
    let (ran, asked) = run(&coordinator, line);
    let wanted = 1_772_323_200_000_u64;
    assert_eq!(ran.json()["wanted_by_ms"], wanted);
    assert_eq!(ran.json()["protected_beyond"][0]["attempt"], "job-7.2");
    let Some(Asked::Drain(asked)) = asked else { panic!("{asked:?}") };
    assert_eq!(asked.wanted_by_ms, Some(wanted));
}

#[test]
fn a_node_that_will_not_come_back_is_removed() {
    let coordinator = Coordinator::with(Script::default());
    let (ran, asked) = run(&coordinator, "node remove gpu-01");
    assert_eq!(ran, told(0, "gpu-01 is removed\n", ""));
    assert_eq!(asked, Some(Asked::Remove("gpu-01".into())));
    assert_eq!(
        run(&coordinator, "node remove gpu-01 --json").0.json(),
        json!({ "node": "gpu-01" })
    );
}

fn policy() -> v1::Policy {
    let rule = v1::GpuRule { name: "h100".into(), product: "H100".into(), weight: 2000 };
    let sharing = v1::Sharing {
        small_reserve: 50_000,
        small_floor: hours(64),
        patience_ms: 86_400_000,
        gate_width: 4,
        gpu_types: vec![rule],
        ..v1::Sharing::default()
    };
    v1::Policy { admins: vec![0, 7], sharing: Some(sharing), ..v1::Policy::default() }
}

#[test]
fn policy_is_shown_in_peoples_units_and_exactly_for_programs() {
    let coordinator = Coordinator::with(Script { policy: Some(policy()), ..Script::default() });
    let (ran, _) = run(&coordinator, "policy show");
    for line in [
        "small_reserve        5%",
        "small_floor          64.0 GPU-h",
        "patience             1d",
        "gate_width           4",
        "admins               0,7",
        "gpu_types            h100:H100:2000",
    ] {
        assert!(ran.stdout.lines().any(|shown| shown == line), "{line:?} in {}", ran.stdout);
    }
    let document = run(&coordinator, "policy show --json").0.json();
    assert_eq!((&document["version"], &document["set"]), (&json!(0), &json!(null)));
    assert_eq!(document["small_reserve_millionths"], 50_000);
    assert_eq!(document["small_floor_gpu_us"], 64 * 3_600_000_000_u64);
    assert_eq!(document["patience_ms"], 86_400_000);
    assert_eq!(document["gpu_types"][0]["weight"], 2000);
}

#[test]
fn policy_is_given_back_whole_with_what_was_changed() {
    let script = || Script {
        policy: Some(policy()),
        policy_version: 12,
        changed: true,
        ..Script::default()
    };
    let coordinator = Coordinator::with(script());
    let line = "policy set slack=2.5% patience=12h gate_width=4 small_floor=8h admins=0,9 \
                gpu_types=h100:H100:2000,a100:A100:1000";
    let (ran, asked) = run(&coordinator, line);
    let expected = "\
slack is 2.5%, and was 0%
patience is 12h, and was 1d
gate_width is 4 (it was so already)
small_floor is 8.0 GPU-h, and was 64.0 GPU-h
admins is 0,9, and was 0,7
gpu_types is h100:H100:2000,a100:A100:1000, and was h100:H100:2000
";
    assert_eq!(ran, told(0, expected, ""));
    let mut changed = policy();
    changed.admins = vec![0, 9];
    let sharing = changed.sharing.as_mut().unwrap();
    sharing.slack = 25_000;
    sharing.patience_ms = 43_200_000;
    sharing.small_floor = hours(8);
    let a100 = v1::GpuRule { name: "a100".into(), product: "A100".into(), weight: 1000 };
    sharing.gpu_types.push(a100);
    assert_eq!(asked, Some(Asked::Policy(changed, Some(12))));
    let shown = run(&coordinator, "policy show").0.stdout;
    let set = "set by 4294000000 at 1970-01-02T00:00:00Z (";
    assert!(shown.contains(set) && shown.ends_with(" ago), record 12\n"), "{shown}");
    let document = run(&coordinator, "policy set slack=2% --json").0.json();
    assert_eq!(
        (&document["changed"], &document["policy"]["slack_millionths"]),
        (&json!(true), &json!(20_000))
    );
}

#[test]
fn a_policy_that_was_set_by_a_try_whose_answer_was_lost_is_told_with_its_instant_and_author() {
    let script = || Script {
        policy: Some(policy()),
        policy_version: 12,
        change_misses: [Status::unavailable("restarting")].into(),
        ..Script::default()
    };
    let (ran, _) = run(&Coordinator::with(script()), "policy set slack=2%");
    let words = "already so, since 1970-01-02T00:00:00Z (by 4294000000, ";
    assert!(ran.code == Some(0) && ran.stdout.contains(words), "{ran:?}");
    let document = run(&Coordinator::with(script()), "policy set slack=2% --json").0.json();
    let set = json!({ "at_ms": 86_400_000, "by": "4294000000" });
    assert_eq!((&document["changed"], &document["set"]), (&json!(false), &set));
}

#[test]
fn a_rule_that_is_none_or_no_value_of_it_is_refused_and_nothing_is_changed() {
    let coordinator = Coordinator::with(Script { policy: Some(policy()), ..Script::default() });
    for (pair, expected) in [
        ("slak=1%", "unknown key \"slak\" (did you mean \"slack\"?); the keys are start_timeout, "),
        ("slack", "\"slack\": give KEY=VALUE; `tidegate policy show` lists the keys"),
        (
            "headroom=1",
            "headroom: \"1\" was given; a percentage like 5% or 12.5%, up to 100% is accepted",
        ),
        ("patience=1", "patience: \"1\" was given; a span of time like 90s or 24h is accepted"),
        ("slack=4%", "slack: \"3%\" and \"4%\" were given; one value for each key is accepted"),
        ("gate_width=-1", "gate_width: \"-1\" was given; a whole number is accepted"),
        (
            "gpu_types=h100",
            "gpu_types: \"h100\" was given; NAME:PRODUCT:WEIGHT like h100:H100:2000, joined by \
             commas, is accepted",
        ),
    ] {
        let ran = coordinator.tidegate(&["policy", "set", "slack=3%", pair]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{pair}");
        assert!(ran.stderr.starts_with(&format!("error: {expected}")), "{pair}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1);
    }
    assert!(coordinator.script().asked.is_empty());
}
