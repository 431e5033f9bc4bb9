use tidegate_model::{AskAfter, AsksWithin, CheckpointOffer, SaveSignal, SaveTarget, SubmitKey};

use super::*;

fn spec() -> JobSpec {
    JobSpec {
        name: "train".into(),
        account: "default".parse().unwrap(),
        command: vec!["train".into()],
        working_dir: "/w".into(),
        env: vec![],
        gpus: GpuCount(8),
        gpus_per_node: Some(GpuCount(8)),
        layout: TaskLayout::PerNode,
        min_runtime: Span::hours(1),
        grace: Span::seconds(30),
        max_restarts: 3,
        checkpoint_dir: None,
        log_cap: Bytes(64 << 20),
        gpu_type: Some("h100".parse().unwrap()),
        max_blocks: Some(2),
        own_order: -3,
        while_waiting: WhileWaiting::Wait,
        checkpoint: Some(CheckpointOffer {
            signal: Some(SaveSignal::Usr1),
            target: SaveTarget::Rank0,
            grace: Span::minutes(5),
            bytes: Some(Bytes(1 << 40)),
            asks_within: AsksWithin::of(Span::seconds(20)),
            storage: "scratch".parse().unwrap(),
            saved_codes: vec![0, 85],
            rehearsal: None,
        }),
        after: vec![Dependency { job: "job-3".parse().unwrap(), success: true }],
        notify_url: Some("https://hooks.example.com/a".into()),
        pty: true,
        whole_cluster: true,
        array: Some(Box::new(ArrayPlace { key: SubmitKey(7), at_a_time: 10 })),
    }
}

fn check_refused(change: impl FnOnce(&mut v1::JobSpec), expected: &str) {
    let mut wire = v1::JobSpec::from(spec());
    change(&mut wire);
    let told = JobSpec::try_from(wire).map(|_| "accepted".to_owned());
    assert_eq!(told.unwrap_or_else(|error| error.to_string()), expected);
}

#[test]
fn a_job_reads_back_what_it_wrote() {
    assert_eq!(JobSpec::try_from(v1::JobSpec::from(spec())), Ok(spec()));
    let mut rehearsal = JobSpec { pty: false, array: None, ..spec() };
    rehearsal.checkpoint.as_mut().unwrap().rehearsal = AskAfter::of(Span::minutes(2));
    assert_eq!(rehearsal.rehearsal(), Some(Span::minutes(2)));
    assert_eq!(JobSpec::try_from(v1::JobSpec::from(rehearsal.clone())), Ok(rehearsal));
}

#[test]
fn a_job_written_before_there_were_choices_has_the_defaults_of_its_time() {
    let old = v1::JobSpec {
        gpu_type: String::new(),
        max_blocks: 0,
        own_order: 0,
        while_waiting: 0,
        checkpoint: None,
        after: vec![],
        notify_url: None,
        pty: false,
        whole_cluster: false,
        array: None,
        ..spec().into()
    };
    let read = JobSpec::try_from(old.clone()).unwrap();
    assert_eq!((&read.gpu_type, read.max_blocks, read.own_order), (&None, None, 0));
    assert_eq!((read.while_waiting, &read.checkpoint), (WhileWaiting::Free, &None));
    assert_eq!(v1::JobSpec::from(read), old, "and is written as it was");
}

#[test]
fn a_job_with_an_unknown_choice_is_refused_by_name() {
    check_refused(|_| (), "accepted");
    check_refused(
        |job| job.while_waiting = 2,
        "JobSpec.while_waiting: 2 is not a value this version knows",
    );
    check_refused(
        |job| job.gpu_type = "H100".into(),
        "JobSpec.gpu_type: \"H100\" is not a name: expected 1 to 63 of a-z 0-9 - _",
    );
    check_refused(|job| job.after[0].job.clear(), "Dependency.job is missing");
    check_refused(
        |job| offer(job).signal = Some("STOP".into()),
        "CheckpointOffer.signal: \"STOP\" is no signal a job is asked by: TERM, USR1, USR2, HUP or \
         INT is accepted",
    );
    check_refused(|job| offer(job).target = 0, "CheckpointOffer.target is missing");
    check_refused(
        |job| offer(job).ask_after_ms = Some(0),
        "CheckpointOffer.ask_after_ms: 0 given; 1s to 1h is accepted",
    );
    check_refused(
        |job| offer(job).ask_after_ms = Some(1000),
        "rehearsal: a job without a terminal, of no array, is accepted",
    );
    check_refused(
        |job| offer(job).saved_codes = vec![256],
        "CheckpointOffer.saved_codes: 256 is out of range",
    );
    check_refused(
        |job| offer(job).grace_ms = 0,
        "checkpoint.grace: 0 asked; more than 0 and up to 30m is accepted",
    );
}

fn offer(job: &mut v1::JobSpec) -> &mut v1::CheckpointOffer {
    job.checkpoint.as_mut().unwrap()
}
