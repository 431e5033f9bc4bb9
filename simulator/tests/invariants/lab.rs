//! A cluster with a tree of budgets, for all that is watched here.

use scheduler_core::{AccountRequest, Cut, Event, Policy, Size};
use simulator::{NodeForm, Observer, World, job_spec};
use tidegate_model::{GpuCount, JobSpec, Span, UserId};

pub(crate) use crate::seeds::seeds;

pub(crate) const ROOT: UserId = UserId(0);

/// Nodes of these sizes, alike but for that.
pub(crate) fn nodes(sizes: &[u32]) -> Vec<NodeForm> {
    let form = |(number, gpus): (u32, &u32)| NodeForm {
        name: format!("n{number}").parse().expect("a name"),
        gpus: *gpus,
        block: String::new(),
        product: "simulated".to_owned(),
    };
    (1..).zip(sizes).map(form).collect()
}

/// A cluster whose jobs stay in the books as long as their time counts.
pub(crate) fn world<O: Observer>(sizes: &[u32], policy: Policy, observer: O) -> World<O> {
    World::new(&nodes(sizes), policy, observer, false).expect("a world")
}

/// Percent of the parent each, parents first; what is not named has nothing.
pub(crate) fn divide<O: Observer>(world: &mut World<O>, tree: &[(&str, u32)]) {
    for (path, percent) in [("default", 0)].iter().chain(tree) {
        let (account, size) = (path.parse().expect("a path"), Size::Share(percent * 10_000));
        let request = AccountRequest::Set { account, size, cut: Cut::Now };
        let decided = world.tell(&Event::AccountRequested { by: ROOT, request });
        assert!(decided.expect("a step").iter().all(|one| one.is_durable()), "{path} {percent} %");
    }
}

pub(crate) fn spec(account: &str, gpus: u32, min_runtime: Span) -> JobSpec {
    let account = account.parse().expect("a path");
    let spec = job_spec(account, GpuCount(gpus)).expect("a job");
    JobSpec { min_runtime, ..spec }
}

/// One of these.
pub(crate) fn pick<T: Copy>(dice: &mut fastrand::Rng, of: &[T]) -> T {
    *dice.choice(of).expect("one of some")
}
