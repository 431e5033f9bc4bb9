//! What is said to a job that the headroom or the cap on protected work keeps from idle GPUs.

use tidegate_model::{JobId, JobSpec, Span, WhileWaiting};

use super::lab::Lab;

fn told(lab: &Lab, job: JobId) -> String {
    lab.core.explain(lab.now(), job).unwrap().lines.join("\n")
}

#[test]
fn free_work_that_only_the_headroom_keeps_waiting_is_told_so_with_its_numbers() {
    let mut lab = Lab::with_nodes(&[8; 13]);
    (0..12).for_each(|_| _ = lab.submit(8));
    let whole = lab.submit(8);
    assert_eq!(
        told(&lab, whole),
        "it is first and needs 8 GPUs; of 8 idle GPUs free work leaves 1 idle (1 % of all)"
    );
    let second = lab.submit(8);
    assert_eq!(
        told(&lab, second),
        "1 job before it in the order; it needs 8 GPUs, and of 8 idle GPUs free work leaves 1 idle \
         (1 % of all)"
    );
    lab.submit(7);
    let no_longer = "it is first, and its gang of 8 GPUs does not fit the 1 idle ones together";
    assert_eq!(told(&lab, whole), no_longer, "now nodes are what it lacks");
}

#[test]
fn a_funded_job_that_only_the_protected_cap_keeps_waiting_is_told_so_with_its_numbers() {
    let mut lab = Lab::with_nodes(&[8; 4]);
    lab.change_policy(|policy| policy.sharing.protected_cap = 700_000);
    let spec = JobSpec {
        min_runtime: Span::hours(2),
        while_waiting: WhileWaiting::Wait,
        account: "default".parse().unwrap(),
        ..lab.spec(8)
    };
    (0..2).for_each(|_| _ = lab.submit_spec(spec.clone()));
    let third = lab.submit_spec(spec);
    assert_eq!(
        told(&lab, third),
        "it is funded; protected work holds 16 GPUs, and with its 8 would hold more than 22 (70 % \
         of all), up to which ordinary jobs start protected"
    );
}
