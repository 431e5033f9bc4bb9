//! What becomes of a job is told to its owner: posted to a web address that fails, hangs and comes
//! back, and handed to the owner's own command.

#![allow(clippy::unwrap_used, reason = "a test's helper may fail as the test itself does")]

use std::collections::VecDeque;
use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster_tests::binaries::Binaries;
use cluster_tests::cluster::{Cluster, Plan, Role};
use cluster_tests::wait::until;
use serde_json::Value;
use tidegate_coordinator::notices::allow::AllowList;
use tidegate_coordinator::notices::post::Poster;
use tidegate_coordinator::notices::queue::Posted;
use tidegate_model::{JobId, JobSpec, Span};
use tidegate_proto::v1;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;

const MINUTE: Duration = Duration::from_secs(60);

/// How a receiver answers a post.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    Status(u16),
    /// To another path of its own.
    Redirect,
    /// It closes the connection without a word.
    Close,
    /// It never answers.
    Hang,
}

/// A web server on this host: what it was posted, and how it answers; 200 once nothing else is left.
#[derive(Debug, Clone)]
struct Receiver {
    address: String,
    /// Path and document.
    posted: Arc<Mutex<Vec<(String, Value)>>>,
    answers: Arc<Mutex<VecDeque<Answer>>>,
}

impl Receiver {
    async fn start(answers: &[Answer]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let receiver = Self {
            address: format!("http://{}", listener.local_addr().unwrap()),
            posted: Arc::default(),
            answers: Arc::new(Mutex::new(answers.iter().cloned().collect())),
        };
        let served = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(served.clone().serve(stream));
            }
        });
        receiver
    }

    async fn serve(self, mut stream: TcpStream) {
        let mut request = Vec::new();
        let (path, document) = loop {
            if let Some(whole) = whole(&request) {
                break whole;
            }
            if stream.read_buf(&mut request).await.unwrap() == 0 {
                return;
            }
        };
        self.posted.lock().unwrap().push((path, document));
        let answer = self.answers.lock().unwrap().pop_front().unwrap_or(Answer::Status(200));
        let told = match answer {
            Answer::Status(status) => format!("HTTP/1.1 {status} Told\r\n"),
            Answer::Redirect => "HTTP/1.1 302 Found\r\nlocation: /elsewhere\r\n".to_owned(),
            Answer::Close => return,
            Answer::Hang => return std::future::pending().await,
        };
        let told = format!("{told}content-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(told.as_bytes()).await.unwrap();
    }

    fn ids(&self) -> Vec<String> {
        let posted = self.posted.lock().unwrap();
        posted.iter().map(|(_, document)| document["id"].as_str().unwrap().to_owned()).collect()
    }

    async fn has_ids(&self, expected: &[&str]) {
        let what = format!("posts {expected:?}");
        let look = async || {
            let ids = self.ids();
            if ids == expected { Ok(()) } else { Err(format!("{ids:?}")) }
        };
        until(MINUTE, &what, look).await.unwrap();
    }
}

/// Path and document of a request that is there as a whole.
fn whole(request: &[u8]) -> Option<(String, Value)> {
    let text = String::from_utf8_lossy(request);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().unwrap())
    });
    let path = head.split(' ').nth(1)?.to_owned();
    (body.len() >= length?).then(|| (path, serde_json::from_str(body).unwrap_or_default()))
}

async fn cluster(receiver: &Receiver) -> Cluster {
    let coordinator = format!("[notices]\nallow = [\"{}/hook\"]", receiver.address);
    let plan = Plan { coordinator, ..Plan::nodes(1, 4) };
    Cluster::start(Binaries::built().unwrap(), &plan).await.unwrap()
}

fn telling(cluster: &Cluster, receiver: &Receiver, command: &[&str]) -> JobSpec {
    JobSpec {
        command: command.iter().map(ToString::to_string).collect(),
        notify_url: Some(format!("{}/hook/secret", receiver.address).into()),
        ..cluster.job("told", 1)
    }
}

/// A job that ends with that code, once it was seen to run: of one that is over before anybody has looked nobody is
/// told that it runs.
async fn runs_and_ends(cluster: &Cluster, receiver: &Receiver, code: u8) -> JobId {
    let client = cluster.client().unwrap();
    let script = format!("until [ -e go ]; do sleep 0.01; done; rm go; exit {code}");
    let spec = telling(cluster, receiver, &["/bin/sh", "-c", &script]);
    let job = client.submit(&JobSpec { max_restarts: 0, ..spec }).await.unwrap();
    let runs = |view: &v1::JobView| view.attempts.iter().any(|one| one.running_ms.is_some());
    client.job_until(job, MINUTE, "runs", runs).await.unwrap();
    fs::write(cluster.dir().join("go"), "").unwrap();
    client.job_ended(job, MINUTE).await.unwrap();
    job
}

#[tokio::test]
async fn a_post_is_tried_until_it_is_taken_and_never_again_after_a_restart() {
    let receiver = Receiver::start(&[Answer::Status(500), Answer::Close]).await;
    let mut cluster = cluster(&receiver).await;
    let client = cluster.client().unwrap();
    let first = runs_and_ends(&cluster, &receiver, 0).await;
    let running = "job-1.1:running";
    let mut ids = vec![running, running, running, "job-1.1:attempt_ended", "job-1:ended"];
    receiver.has_ids(&ids).await;
    let posted = receiver.posted.lock().unwrap().clone();
    assert!(posted.iter().all(|(path, _)| path == "/hook/secret"), "{posted:?}");
    let (_, last) = posted.last().unwrap();
    assert_eq!(last["text"], "job-1 (told): over: done");
    assert_eq!((&last["outcome"], &last["job"]), (&"done".into(), &"job-1".into()));
    let view = client.job(first).await.unwrap();
    let shown = view.spec.unwrap().notify_url;
    assert_eq!(shown, Some(format!("{}/...", receiver.address)), "the rest is a secret");

    let kept = cluster.dir().join("store/store.redb.notices");
    let written = async || {
        let text = fs::read_to_string(&kept).unwrap();
        let position: Value = serde_json::from_str(&text).unwrap();
        let (up_to, record) = (position["up_to"].as_u64(), last["record"].as_u64());
        if up_to >= record { Ok(()) } else { Err(text) }
    };
    until(MINUTE, "the position in its file", written).await.unwrap();
    cluster.kill(Role::Coordinator).unwrap();
    cluster.start_role(Role::Coordinator).unwrap();
    cluster.ready(MINUTE).await.unwrap();
    runs_and_ends(&cluster, &receiver, 0).await;
    ids.extend(["job-2.1:running", "job-2.1:attempt_ended", "job-2:ended"]);
    receiver.has_ids(&ids).await;
}

#[tokio::test]
async fn what_happens_while_the_receiver_is_down_is_posted_by_the_coordinator_after_this_one() {
    let down = vec![Answer::Status(503); 100];
    let receiver = Receiver::start(&down).await;
    let mut cluster = cluster(&receiver).await;
    runs_and_ends(&cluster, &receiver, 1).await;
    let tried = async || match receiver.ids().len() {
        0 => Err("none".to_owned()),
        _ => Ok(()),
    };
    until(MINUTE, "a post", tried).await.unwrap();
    cluster.kill(Role::Coordinator).unwrap();
    receiver.answers.lock().unwrap().clear();
    receiver.posted.lock().unwrap().clear();
    cluster.start_role(Role::Coordinator).unwrap();
    receiver.has_ids(&["job-1.1:running", "job-1.1:attempt_ended", "job-1:ended"]).await;
    let posted = receiver.posted.lock().unwrap().clone();
    let text = posted[1].1["text"].as_str().unwrap();
    assert!(text.contains("ended: failed; job-1.1.0 on node-0 ended with exit code 1"), "{text}");
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_the_next_post_says_what_is_missed() {
    let receiver = Receiver::start(&[Answer::Redirect]).await;
    let cluster = cluster(&receiver).await;
    let client = cluster.client().unwrap();
    runs_and_ends(&cluster, &receiver, 0).await;
    receiver.has_ids(&["job-1.1:running", "job-1.1:attempt_ended", "job-1:ended"]).await;
    let posted = receiver.posted.lock().unwrap().clone();
    assert!(posted.iter().all(|(path, _)| path == "/hook/secret"), "{posted:?}");
    let missed: Vec<_> = posted.iter().map(|(_, document)| document["missed"].as_u64()).collect();
    assert_eq!(missed, [None, Some(1), None]);

    let elsewhere = JobSpec {
        notify_url: Some("http://169.254.169.254/latest/".into()),
        ..cluster.job("elsewhere", 1)
    };
    let spec = Some(v1::JobSpec::from(elsewhere));
    let request = v1::SubmitRequest { key: ulid::Ulid::generate().to_string(), spec: spec.clone() };
    let refused = client.api().submit(request).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    let expected = format!(
        "notify_url: not allowed here; accepted is what begins with {}/hook",
        receiver.address
    );
    assert_eq!(refused.message(), expected);
    let refused = client.api().dry_run(v1::DryRunRequest { spec }).await.unwrap_err();
    assert_eq!(refused.message(), expected);
}

#[tokio::test]
async fn who_hangs_is_left_in_time_and_tried_again() {
    let receiver = Receiver::start(&[Answer::Hang]).await;
    let allow = AllowList::parse(std::slice::from_ref(&receiver.address)).unwrap();
    let poster = Poster::new(allow, Duration::from_millis(300)).unwrap();
    let posted = poster.post(&receiver.address, "{}".to_owned()).await;
    assert!(matches!(&posted, Posted::Again(why) if why.starts_with("no answer")), "{posted:?}");
    assert_eq!(poster.post(&receiver.address, "{}".to_owned()).await, Posted::Taken);
    let elsewhere = poster.post("http://127.0.0.1:1/", "{}".to_owned()).await;
    assert!(matches!(elsewhere, Posted::Refused(_)), "{elsewhere:?}");
}

#[tokio::test]
async fn the_owner_is_told_from_where_he_was_told_last_and_his_command_gets_each() {
    let binaries = Binaries::built().unwrap();
    let cluster = Cluster::start(binaries.clone(), &Plan::nodes(1, 4)).await.unwrap();
    let client = cluster.client().unwrap();
    let state = cluster.dir().join("state");
    let tidegate = |args: &[&str]| {
        let mut command = Command::new(binaries.path("tidegate"));
        command.arg("--socket").arg(cluster.socket()).args(args);
        command.env("XDG_STATE_HOME", &state).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let told = |args: &[&str]| {
        let Output { status, stdout, stderr } = tidegate(args).output().unwrap();
        assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
        (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    };
    let (out, err) = told(&["notices"]);
    assert_eq!((out.as_str(), err.as_str()), ("", "notices are told from now on\n"));
    // Free work that can save gives way to protected work.
    let sleeper = |min_runtime| JobSpec {
        command: vec!["/bin/sleep".into(), "600".into()],
        min_runtime,
        ..cluster.job("sleeper", 4)
    };
    let free = client.submit(&sleeper(Span::ZERO)).await.unwrap();
    let runs = |view: &v1::JobView| {
        view.attempts.first().is_some_and(|attempt| attempt.running_ms.is_some())
    };
    client.job_until(free, MINUTE, "runs", runs).await.unwrap();
    let protected = client.submit(&sleeper(Span::hours(1))).await.unwrap();
    client.job_until(protected, MINUTE, "runs", runs).await.unwrap();
    let (out, _) = told(&["notices", "--json"]);
    let documents: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let ids: Vec<_> = documents.iter().map(|one| one["id"].as_str().unwrap()).collect();
    let expected =
        ["job-1.1:running", "job-1.1:asked_to_save", "job-1.1:attempt_ended", "job-2.1:running"];
    assert_eq!(ids, expected);
    let text = documents[1]["text"].as_str().unwrap();
    assert!(text.contains("job-2.1 of uid-") && text.contains("free work yields"), "{text}");
    assert_eq!(told(&["notices"]).0, "", "nothing is told twice");

    let file = cluster.dir().join("told");
    let script = format!("cat >> {}", file.display());
    let mut following =
        tidegate(&["notices", "--follow", "--exec", "sh", "-c", &script]).spawn().unwrap();
    for job in [free, protected] {
        client.api().cancel(v1::CancelRequest { job: job.to_string() }).await.unwrap();
    }
    let all = async || {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let ended = text.lines().filter(|line| line.contains(":ended\"")).count();
        if ended == 2 { Ok(()) } else { Err(text) }
    };
    let found = until(MINUTE, "both ends", all).await;
    following.kill().unwrap();
    following.wait().unwrap();
    found.unwrap();
    // Killed between a command's end and the note of it, it would tell the last one again.
    told(&["notices", "--exec", "true"]);
    let stopped = tidegate(&["notices", "--exec", "false"]).output().unwrap();
    assert_eq!(stopped.status.code(), Some(0), "none was left: {stopped:?}");
}
