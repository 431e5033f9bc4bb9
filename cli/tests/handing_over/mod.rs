//! Dry runs, arrays, and what a run says of itself.

use std::fs;

use serde_json::json;
use tidegate_proto::v1;
use tonic::Status;

use super::sharing::run;
use super::support::{Asked, Coordinator, Script};
use super::{KEY, told};

#[test]
fn a_dry_run_submits_nothing_and_its_exit_tells_whether_the_job_would_be_accepted() {
    let dry_run = |hours: u64, refused: &str| v1::DryRun {
        min_runtime_ms: hours * 3_600_000,
        refused: refused.into(),
        starts: v1::Standing::Protected.into(),
        at_ms: Some(0),
        reason: "Starting".into(),
        lines: vec!["its tasks' GPUs are being verified".into()],
        ..v1::DryRun::default()
    };
    let dry_runs = vec![dry_run(0, ""), dry_run(1, ""), dry_run(8, "8h asked; 4h is most")];
    let coordinator = Coordinator::with(Script { dry_runs, ..Script::default() });
    let (ran, asked) = run(&coordinator, "run --dry-run --min-runtime 1h --gpus 8 -- true");
    let table = "\
MIN-RUNTIME  STARTS                           PLEDGES  SMALL  ELDER
          0  now, protected                 0.0 GPU-h  no     never
        *1h  now, protected                 0.0 GPU-h  no     never
         8h  refused: 8h asked; 4h is most  0.0 GPU-h  no     -

1h: Starting
  its tasks' GPUs are being verified
";
    assert_eq!(ran, told(0, table, ""));
    let Some(Asked::DryRun(spec)) = asked else { panic!("{asked:?}") };
    assert_eq!((spec.gpus, spec.min_runtime_ms), (8, 3_600_000));
    fs::write(coordinator.path("a.toml"), "command = [\"true\"]\nmin_runtime = \"8h\"").unwrap();
    let (ran, _) = run(&coordinator, "submit --dry-run a.toml --json");
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(2), "error: 8h asked; 4h is most\n"));
    let expected = json!({
        "min_runtime_ms": 28_800_000, "own": true, "small": false, "pledge_gpu_us": 0,
        "starts": "protected", "at_ms": 0, "elder_at_ms": null,
        "refused": "8h asked; 4h is most", "reason": "Starting",
        "lines": ["its tasks' GPUs are being verified"], "numbers": {}
    });
    assert_eq!(ran.json()["runs"][2], expected);
    assert!(coordinator.script().submits.is_empty());
}

#[test]
fn a_min_runtime_that_nobody_asked_for_is_not_warned_about() {
    let long = v1::Warning {
        told: "min_runtime 1h is long".into(),
        numbers: [("min_runtime_ms".to_owned(), 3_600_000)].into(),
    };
    let coordinator = Coordinator::with(Script { warnings: vec![long], ..Script::default() });
    let check = |line: &str, expected: &str| {
        let (ran, _) = run(&coordinator, line);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), expected), "{line}");
    };
    check("run --pty --dry-run -- sh", "");
    let warned = "warning: min_runtime 1h is long\n";
    check("run --pty --min-runtime 1h --dry-run -- sh", warned);
    check("run --min-runtime 1h -- sh", warned);
}

#[test]
fn a_dry_run_that_is_refused_as_a_whole_has_the_refusals_code() {
    let words = "account nobody: not known here; `tidegate accounts` lists them";
    let refusal = Some(Status::not_found(words));
    let coordinator = Coordinator::with(Script { refusal, ..Script::default() });
    let (ran, _) = run(&coordinator, "run --dry-run --account nobody -- true");
    assert_eq!(ran, told(3, "", &format!("error: {words}\n")));
}

#[test]
fn an_array_is_one_job_a_number_under_keys_that_come_of_one() {
    let coordinator = Coordinator::with(Script::default());
    let line = format!("run --array 5-8%2 --key {KEY} --json -- eval");
    let (ran, _) = run(&coordinator, &line);
    let document = ran.json();
    let jobs = document["jobs"].as_array().unwrap();
    let ids: Vec<_> = jobs.iter().map(|one| one["job"].as_str().unwrap()).collect();
    let indexes: Vec<_> = jobs.iter().map(|one| one["index"].as_u64().unwrap()).collect();
    assert_eq!((ids, indexes), (vec!["job-7", "job-8", "job-9", "job-10"], vec![5, 6, 7, 8]));
    let (ran, _) = run(&coordinator, &line);
    assert!(ran.json()["jobs"].as_array().unwrap().iter().all(|one| one["repeated"] == true));
    let asked = coordinator.script().submits.clone();
    assert_eq!(asked.len(), 8);
    assert_eq!(asked[..4], asked[4..], "handed over again, it is the same");
    assert_eq!(asked[0].key, KEY, "no other job is made under it");
    let spec = |at: usize| asked[at].spec.clone().unwrap();
    assert_eq!((spec(0).name, spec(3).name), ("eval[5]".into(), "eval[8]".into()));
    let env: Vec<_> = spec(3).env.iter().map(|one| format!("{}={}", one.name, one.value)).collect();
    assert_eq!(env, ["ARRAY_COUNT=4", "ARRAY_INDEX=8"]);
    let place = v1::ArrayPlace { key: KEY.into(), at_a_time: 2 };
    assert!((0..4).all(|at| spec(at).array.as_ref() == Some(&place) && spec(at).after.is_empty()));
    let (ran, _) = run(&coordinator, "run --array 0-1 -- eval");
    assert_eq!(ran, told(0, "job-11\njob-12\n", ""));
    let alone = coordinator.script().submits.last().and_then(|asked| asked.spec.clone());
    assert_eq!(alone.unwrap().array, None, "it runs as many as it can");
}

#[test]
fn an_array_of_which_one_job_is_refused_makes_none() {
    let coordinator = Coordinator::with(Script::default());
    let long = "n".repeat(125);
    for json in ["", " --json"] {
        let (ran, _) = run(&coordinator, &format!("run --array 0-11 --name {long}{json} -- eval"));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
        assert!(ran.stderr.contains("name"), "{ran:?}");
    }
    assert_eq!(coordinator.script().submits.len(), 0);
}

#[test]
fn the_leave_to_hold_the_whole_cluster_is_asked_for_with_the_job() {
    let coordinator = Coordinator::with(Script::default());
    for (line, asked) in [("run --whole-cluster -- eval", true), ("run -- eval", false)] {
        let (ran, _) = run(&coordinator, line);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let spec = coordinator.script().submits.last().and_then(|one| one.spec.clone()).unwrap();
        assert_eq!(spec.whole_cluster, asked, "{line}");
    }
}

#[test]
fn an_array_of_which_only_a_part_was_accepted_says_how_to_go_on() {
    let words = "1 jobs are alive, as many as the policy allows";
    let misses = [Status::ok(""), Status::resource_exhausted(words)].into();
    let coordinator = Coordinator::with(Script { submit_misses: misses, ..Script::default() });
    let line = format!("run --array 0-1 --key {KEY} -- eval");
    let (ran, _) = run(&coordinator, &line);
    let expected = format!(
        "error: after 1 job of the array: {words}; repeat with --key {KEY} and no second job can come of it\n"
    );
    assert_eq!(ran, told(5, "job-7\n", &expected));
    let (ran, _) = run(&coordinator, &line);
    let remark = format!("2 jobs of 2 had been accepted before, under the key {KEY}\n");
    assert_eq!(ran, told(0, "job-7\njob-8\n", &remark));
    coordinator.script().submit_misses = [Status::ok(""), Status::invalid_argument("no")].into();
    let (ran, _) = run(&coordinator, &line);
    let refused = format!("error: after 1 job of the array: no; the key of the array is {KEY}\n");
    assert_eq!(ran, told(2, "job-7\n", &refused));
}

#[test]
fn what_a_run_offers_when_it_is_asked_to_save_is_sent_with_it() {
    let coordinator = Coordinator::with(Script::default());
    let line = "run --gpus 8 --min-runtime 2h --gpu-type h100 --max-blocks 1 --order -2 --no-free \
                --after job-3 --after-success job-4 --checkpoint lightning --checkpoint grace=5m \
                -- true";
    let (ran, _) = run(&coordinator, line);
    assert_eq!(ran, told(0, "job-7\n", ""));
    let spec = coordinator.script().submits[0].spec.clone().unwrap();
    let offer = spec.checkpoint.clone().unwrap();
    assert_eq!(offer.signal.as_deref(), Some("USR1"));
    assert_eq!((offer.target(), offer.grace_ms), (v1::SaveTarget::Ranks, 300_000));
    assert_eq!((offer.storage.as_str(), offer.saved_codes.as_slice()), ("shared", [85].as_slice()));
    assert_eq!((spec.gpu_type.as_str(), spec.max_blocks, spec.own_order), ("h100", 1, -2));
    assert_eq!(spec.while_waiting(), v1::WhileWaiting::Wait);
    let after: Vec<_> = spec.after.iter().map(|one| (one.job.as_str(), one.success)).collect();
    assert_eq!(after, [("job-3", false), ("job-4", true)]);
    let (ran, _) = run(&coordinator, "run --checkpoint signal=KILL -- true");
    let refused = "error: checkpoint.signal: the string \"KILL\" was given; \"TERM\", \"USR1\", \
                   \"USR2\", \"HUP\" or \"INT\" is accepted\n";
    assert_eq!(ran, told(2, "", refused));
    assert_eq!(coordinator.script().submits.len(), 1);
}
