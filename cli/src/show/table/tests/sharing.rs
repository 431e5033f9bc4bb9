//! Accounts, and what would happen to a job.

use tidegate_model::Span;
use tidegate_proto::{amount_bytes, v1};

use super::{NOW, ago_ms, check, users};
use crate::show::table::{accounts, budget, dry_runs, roles};
use crate::view::account::Accounts;
use crate::view::dry_run::DryRun;

const DAY: u64 = 86_400;

fn hours(tenths: i128) -> Vec<u8> {
    amount_bytes(tenths * 360_000_000)
}

fn share(percent: u32) -> Option<v1::Size> {
    Some(v1::Size { size: Some(v1::size::Size::ShareMillionths(percent * 10_000)) })
}

fn account(name: &str, parent: &str, budget: i128, claim: (i128, i128)) -> v1::AccountView {
    v1::AccountView {
        account: name.into(),
        parent: parent.into(),
        size: share(30),
        since_ms: ago_ms(2 * DAY),
        stated: hours(budget),
        budget: hours(budget),
        limit: hours(budget * 95 / 100),
        charged: hours(claim.0),
        pledged: hours(claim.1),
        claim: hours(claim.0 + claim.1),
        ..v1::AccountView::default()
    }
}

/// Of a user: charged and pledged, and small use, in tenths of an hour.
fn user(uid: u32, claim: (i128, i128), small: i128) -> v1::UserUse {
    v1::UserUse {
        uid,
        charged: hours(claim.0),
        pledged: hours(claim.1),
        claim: hours(claim.0 + claim.1),
        free: Vec::new(),
        small_use: hours(small),
    }
}

fn tree() -> Vec<v1::AccountView> {
    let root = v1::AccountView { size: share(100), ..account("root", "", 20_000, (7500, 0)) };
    let olmo = v1::AccountView { scaled: true, ..account("olmo", "root", 6000, (5500, 0)) };
    let pretrain = v1::AccountView {
        size: Some(v1::Size { size: Some(v1::size::Size::Fixed(hours(4000))) }),
        leaf: true,
        users: vec![user(1000, (1200, 300), 15), user(1001, (800, 0), 5)],
        free: hours(77),
        small_allowance: hours(640),
        elder: "job-9".into(),
        ..account("olmo/pretrain", "olmo", 4000, (2000, 300))
    };
    let sft = v1::AccountView {
        leaf: true,
        over_since_ms: Some(ago_ms(7200)),
        cut_left: hours(1200),
        ..account("olmo/sft", "olmo", 1000, (1000, 0))
    };
    vec![root, olmo, pretrain, sft]
}

fn read(accounts: Vec<v1::AccountView>) -> Accounts {
    let reply = v1::ListAccountsReply { accounts, at_ms: NOW.0, more: false };
    Accounts::read(reply, &mut users()).unwrap()
}

#[test]
fn accounts_are_a_tree_and_what_is_special_of_one_is_told_below() {
    check(
        &accounts(&read(tree()), false),
        "\
ACCOUNT            BUDGET  SHARE   LIMIT  CHARGED  PLEDGED  CLAIM   RATIO  FREE  SMALL
root               2000.0      -  1900.0    750.0      0.0  750.0   39.4%   0.0    2.0
  olmo              600.0    30%   570.0    550.0      0.0  550.0   96.4%   0.0    2.0
    olmo/pretrain   400.0  66.6%   380.0    200.0     30.0  230.0   60.5%   7.7    2.0
    olmo/sft        100.0    30%    95.0    100.0      0.0  100.0  105.2%   0.0    0.0

olmo: its children ask for more than it has, and are scaled down
olmo/pretrain: job-9 has waited longest and goes first
olmo/sft: over its limit for 2h
olmo/sft: a cut is under way, 120.0 more in the next 5d
",
    );
}

#[test]
fn users_stand_below_their_account_and_a_tree_without_anything_special_has_no_legend() {
    let [_, _, pretrain, _] = <[_; 4]>::try_from(tree()).unwrap();
    let pretrain = v1::AccountView { elder: String::new(), ..pretrain };
    check(
        &accounts(&read(vec![pretrain]), true),
        "\
ACCOUNT        BUDGET  SHARE  LIMIT  CHARGED  PLEDGED  CLAIM  RATIO  FREE  SMALL
olmo/pretrain   400.0      -  380.0    200.0     30.0  230.0  60.5%   7.7    2.0
  @ana              -      -      -    120.0     30.0  150.0  39.4%   0.0    1.5
  @bo               -      -      -     80.0      0.0   80.0  21.0%   0.0    0.5
",
    );
}

#[test]
fn a_budget_is_shown_with_transfers_requests_and_edits() {
    let edit = |days: u64, uid, percent, now| v1::EditView {
        at_ms: ago_ms(days * DAY),
        by_uid: uid,
        size: share(percent),
        now,
    };
    let [.., sft] = <[_; 4]>::try_from(tree()).unwrap();
    let sft = v1::AccountView {
        transfers: vec![
            v1::TransferView { amount: hours(-1000), until_ms: Some(NOW.0 + 3 * DAY * 1000) },
            v1::TransferView { amount: hours(50), until_ms: None },
        ],
        asks: vec![v1::AskView {
            uid: 1001,
            size: share(40),
            reason: "deadline\non Friday".into(),
            at_ms: ago_ms(3600),
        }],
        edits: vec![edit(9, 0, 40, false), edit(2, 1000, 30, true)],
        small_allowance: hours(640),
        ..sft
    };
    let tree = read(vec![sft]);
    check(
        &budget(&tree.accounts[0], NOW),
        "\
account  olmo/sft
size     30% of olmo, for 2d
budget   100.0 GPU-h, and 95.0 more are given away by transfers
limit    95.0 GPU-h
charged  100.0 GPU-h
pledged  0.0 GPU-h
claim    100.0 GPU-h, 105.2% of the limit
free     0.0 GPU-h
small    0.0 GPU-h; each user may draw 64.0

olmo/sft: over its limit for 2h
olmo/sft: a cut is under way, 120.0 more in the next 5d

 TRANSFERRED  LAPSES
-100.0 GPU-h  in 3d
   5.0 GPU-h  never

REQUESTED  USER    WHEN  REASON
      40%  bo    1h ago  deadline\\non Friday

EDITED  BY      WHEN  CUT
   30%  ana   2d ago  at once
   40%  root  9d ago  -
",
    );
}

#[test]
fn roles_are_listed_by_account() {
    let mut accounts = tree();
    let role = |uid, role: v1::Role| v1::RoleView { uid, role: role.into() };
    accounts[1].roles = vec![role(1000, v1::Role::Manager), role(1001, v1::Role::Member)];
    check(
        &roles(&read(accounts)),
        "\
ACCOUNT  USER  ROLE
olmo     ana   manager
olmo     bo    member
",
    );
}

fn run(min_runtime: Span, reason: &str, line: &str) -> v1::DryRun {
    v1::DryRun {
        min_runtime_ms: min_runtime.0,
        pledge: hours(i128::from(min_runtime.0 / 360_000) * 16),
        reason: reason.into(),
        lines: vec![line.into()],
        ..v1::DryRun::default()
    }
}

#[test]
fn a_dry_run_is_a_row_for_each_min_runtime_and_a_reason_for_the_jobs_own() {
    let at = |minutes: u64| Some(NOW.0 + minutes * 60_000);
    let free = v1::Standing::Free.into();
    let mut short = run(Span::hours(4), "AwaitingBudget", "olmo is 9.00 GPU-hours short");
    short.numbers = [("refills_at_ms".to_owned(), NOW.0 + 300 * 60_000)].into();
    let mut beyond = run(Span::hours(8), "Unsatisfiable", "it asks 128.00 GPU-hours at a time");
    beyond.numbers = [("limit_gpu_ms".to_owned(), 1)].into();
    let runs = [
        v1::DryRun { starts: free, at_ms: at(0), ..run(Span::ZERO, "Starting", "") },
        v1::DryRun {
            at_ms: at(130),
            elder_at_ms: at(24 * 60),
            ..run(Span::hours(1), "AwaitingReservation", "it is funded; its 16 GPUs are expected")
        },
        v1::DryRun { elder_at_ms: at(24 * 60), ..short },
        beyond,
        v1::DryRun { refused: "9h asked".into(), ..run(Span::hours(9), "", "") },
        v1::DryRun { small: true, ..run(Span::minutes(30), "AwaitingTurn", "2 jobs before it") },
        run(Span::minutes(20), "Unsatisfiable", "no nodes have the form it asks"),
    ];
    let read = |run| DryRun::read(run, Span::hours(1)).unwrap();
    check(
        &dry_runs(&runs.map(read), NOW),
        "\
MIN-RUNTIME  STARTS                                     PLEDGES  SMALL  ELDER
          0  now, free                                0.0 GPU-h  no     never
        *1h  in 2h10m, expected                      16.0 GPU-h  no     in 24h
         4h  waits for budget, about in 5h           64.0 GPU-h  no     in 24h
         8h  never: this account can never fund it  128.0 GPU-h  no     never
         9h  refused: 9h asked                      144.0 GPU-h  no     -
        30m  waits: 2 jobs before it                  8.0 GPU-h  yes    never
        20m  never: no nodes have the form it asks    4.8 GPU-h  no     never

1h: AwaitingReservation
  it is funded; its 16 GPUs are expected
",
    );
}
