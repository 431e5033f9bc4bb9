//! The victims that a plan takes, against exhaustive search on small clusters.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tidegate_model::{AttemptId, GpuCount, JobId, JobSpec, Span, SubmitKey, UserId};

use super::lab::Lab;
use crate::decide::pass::Pass;
use crate::decide::victims::{Choice, EXACT_AMONG, Search, cost, displaced_lately};
use crate::{AccountId, Books, Job, Standing};

/// GPUs of one gang: nodes, and on each.
type Form = (u32, u32);

const NODES: u32 = 4;
const GPUS: u32 = 4;

/// Free gangs of these forms run, begun at different times; some have committed.
fn cluster(gangs: &[(u8, u16, bool)]) -> Lab {
    let mut lab = Lab::with_nodes(&[GPUS; 4]);
    lab.change_policy(|policy| {
        policy.sharing.headroom = 0;
        policy.silent_after = Span::hours(1);
        policy.sharing.pass_every = Span::hours(1);
    });
    let forms: [Form; 7] = [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 2)];
    for (form, minutes, commits) in gangs {
        let (nodes, per_node) = forms[usize::from(*form) % forms.len()];
        let per_node_count = Some(GpuCount(per_node));
        let spec = JobSpec { gpus_per_node: per_node_count, ..lab.spec(nodes * per_node) };
        let job = lab.submit_spec(spec);
        if lab.attempts(job) == 0 {
            lab.cancel(job);
            continue;
        }
        lab.run(job);
        lab.pass_with(Span::minutes(u64::from(*minutes % 50)), &[1, 2, 3, 4]);
        if *commits {
            let task = lab.job(job).attempts[0].tasks().next().unwrap().0;
            lab.commit(task, 1);
        }
    }
    lab
}

/// What one set of victims costs: the worst class, then the sum.
type Price = ((bool, bool), u128);

fn price(books: &Books, lab: &Lab, victims: &BTreeSet<AttemptId>) -> Price {
    let mut price = ((false, false), 0);
    for id in victims {
        let (job, attempt) = (&books.jobs[&id.job], books.attempt(*id).unwrap());
        let class = (attempt.standing == Standing::Funded, displaced_lately(books, job, lab.now()));
        price.0 = class.max(price.0);
        price.1 += cost(books, job, attempt, lab.now());
    }
    price
}

/// Nodes on which enough is idle or held by the victims.
fn makes_room(books: &Books, victims: &BTreeSet<AttemptId>, (nodes, per_node): Form) -> bool {
    let roomy = books.nodes.values().filter(|node| {
        let freed = node.held.values().filter(|task| victims.contains(&task.attempt)).count();
        node.idle().count() + freed >= usize::try_from(per_node).unwrap()
    });
    roomy.count() >= usize::try_from(nodes).unwrap()
}

fn exhaustive(lab: &Lab, form: Form) -> Option<Price> {
    let books = lab.core.books();
    let all: Vec<AttemptId> = books.live_attempts().map(|attempt| attempt.id).collect();
    let subsets = (0_u32..1 << all.len()).map(|mask| {
        let members = all.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
        members.map(|(_, id)| *id).collect::<BTreeSet<_>>()
    });
    let fitting = subsets.filter(|victims| makes_room(books, victims, form));
    fitting.map(|victims| price(books, lab, &victims)).min()
}

fn planned(lab: &Lab, (nodes, per_node): Form, exact_among: usize) -> Option<Choice> {
    let books = lab.core.books();
    let spec = JobSpec {
        gpus_per_node: Some(GpuCount(per_node)),
        min_runtime: Span::hours(1),
        ..lab.spec(nodes * per_node)
    };
    let mut job = Job::accepted(JobId(9999), (UserId(7), SubmitKey(9)), &spec, lab.now());
    job.account = AccountId(1);
    let pass = Pass::new(books, lab.core.seen(), lab.now());
    let bid = pass.options(&job).into_iter().next()?;
    let (money, seen, claimant) = (&pass.money, lab.core.seen(), bid.claimant);
    let search = Search { money, seen, claimant, firm: false, exact_among };
    let all: Vec<usize> = (0..pass.spots().len()).collect();
    search.cheapest(pass.spots(), &all, bid.shape, None)
}

fn gangs() -> impl Strategy<Value = Vec<(u8, u16, bool)>> {
    proptest::collection::vec((any::<u8>(), any::<u16>(), any::<bool>()), 0..10)
}

fn forms() -> impl Strategy<Value = Form> {
    (1..=NODES, 1..=GPUS)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn victims_are_of_the_best_class_there_is_and_cost_little_more_than_the_best(
        gangs in gangs(), form in forms()
    ) {
        let lab = cluster(&gangs);
        let best = exhaustive(&lab, form);
        let found = planned(&lab, form, EXACT_AMONG);
        prop_assert_eq!(best.is_some(), found.is_some());
        if let Some((best, found)) = best.zip(found) {
            let victims: BTreeSet<_> = found.victims.keys().copied().collect();
            let books = lab.core.books();
            prop_assert!(makes_room(books, &victims, form));
            let price = price(books, &lab, &victims);
            prop_assert_eq!(price.0, best.0);
            prop_assert!(price.1 * 10 <= best.1 * 13, "{} against {}", price.1, best.1);
        }
    }
}

/// What is done among more victims than all sets can be tried of.
#[test]
fn without_trying_all_the_sum_over_many_clusters_is_at_most_a_twentieth_above_the_best() {
    let (mut best, mut found, mut exact, mut seed) =
        (0_u128, 0_u128, 0_u32, 88_172_645_463_325_252_u64);
    let mut next = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut cases = 0;
    while cases < 150 {
        let gangs: Vec<_> = (0..4 + next(6))
            .map(|_| (next(256).to_le_bytes()[0], u16::try_from(next(50)).unwrap(), next(2) == 1))
            .collect();
        let form = (1 + u32::try_from(next(4)).unwrap(), 1 + u32::try_from(next(4)).unwrap());
        let lab = cluster(&gangs);
        let (Some(least), Some(choice)) = (exhaustive(&lab, form), planned(&lab, form, 0)) else {
            continue;
        };
        if least.1 == 0 {
            continue;
        }
        cases += 1;
        let victims = choice.victims.keys().copied().collect();
        let price = price(lab.core.books(), &lab, &victims);
        best += least.1;
        found += price.1;
        exact += u32::from(price.1 == least.1);
    }
    assert!(found * 20 <= best * 21, "{found} against {best}, {exact} of 150 exact");
}
