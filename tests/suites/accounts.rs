//! What people ask of accounts, waiting jobs, nodes and the policy, through the API.

#![allow(clippy::unwrap_used, reason = "a test's helper may fail as the test itself does")]

use std::time::Duration;

use cluster_tests::binaries::Binaries;
use cluster_tests::client::Client;
use cluster_tests::cluster::{Cluster, Plan};
use tidegate_model::{JobSpec, Span};
use tidegate_proto::v1::change_account_request::{
    Answer, Ask, Change, SetBudget, SetRole, Transfer,
};
use tidegate_proto::{amount, amount_bytes, v1};
use tonic::Code;

const MINUTE: Duration = Duration::from_secs(60);
const GPU_HOUR: i128 = 3_600_000_000;

async fn cluster() -> (Cluster, Client) {
    let cluster = Cluster::start(Binaries::built().unwrap(), &Plan::nodes(1, 4)).await.unwrap();
    let client = cluster.client().unwrap();
    (cluster, client)
}

fn share(millionths: u32) -> Option<v1::Size> {
    Some(v1::Size { size: Some(v1::size::Size::ShareMillionths(millionths)) })
}

fn set(account: &str, millionths: u32) -> Change {
    Change::Set(SetBudget { account: account.into(), size: share(millionths), now: true })
}

async fn change(client: &Client, change: Change) -> Result<bool, tonic::Status> {
    let request = v1::ChangeAccountRequest { change: Some(change) };
    Ok(client.api().change_account(request).await?.into_inner().changed)
}

async fn account(client: &Client, path: &str) -> v1::AccountView {
    let request = v1::ListAccountsRequest::default();
    let accounts = client.api().list_accounts(request).await.unwrap().into_inner().accounts;
    accounts.into_iter().find(|one| one.account == path).unwrap()
}

fn hours(bytes: &[u8]) -> i128 {
    amount(bytes, "Amount").unwrap() / GPU_HOUR
}

fn sleeper(cluster: &Cluster, account: &str, gpus: u32) -> JobSpec {
    JobSpec {
        account: account.parse().unwrap(),
        command: vec!["/bin/sleep".into(), "600".into()],
        min_runtime: Span::hours(1),
        ..cluster.job("sleeper", gpus)
    }
}

#[tokio::test]
async fn a_budget_is_divided_charged_and_refused_with_figures() {
    let (cluster, client) = cluster().await;
    let undivided = account(&client, "default").await;
    assert_eq!((hours(&undivided.budget), hours(&undivided.limit)), (672, 638));
    assert!(change(&client, set("default", 500_000)).await.unwrap());
    assert!(change(&client, set("team", 500_000)).await.unwrap());
    assert!(!change(&client, set("team", 500_000)).await.unwrap(), "nothing to change");
    let refused = change(&client, set("more", 1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("children may not sum above their parent"), "{refused}");
    let refused = change(&client, set("nowhere/more", 1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::NotFound, "{refused}");
    let moved = amount_bytes(10 * GPU_HOUR);
    let (from, to) = ("default".into(), "team".into());
    let transfer = Change::Transfer(Transfer {
        from,
        to,
        amount: moved,
        permanent: false,
        key: String::new(),
    });
    assert!(change(&client, transfer).await.unwrap());
    let role = Change::SetRole(SetRole {
        account: "team".into(),
        uid: 4321,
        role: v1::Role::Manager.into(),
    });
    assert!(change(&client, role).await.unwrap());
    let (account_path, reason) = ("team".into(), "more".into());
    let ask = Change::Ask(Ask { account: account_path, size: share(600_000), reason });
    assert!(change(&client, ask).await.unwrap());

    let job = client.submit(&sleeper(&cluster, "team", 2)).await.unwrap();
    let runs = |view: &v1::JobView| view.promised_until_ms.is_some();
    let view = client.job_until(job, MINUTE, "runs", runs).await.unwrap();
    assert_eq!((view.standing(), view.account.as_str()), (v1::Standing::Protected, "team"));
    let team = account(&client, "team").await;
    assert_eq!(hours(&team.budget), 346, "half of 672, and 10 more");
    let claim = amount(&team.claim, "claim").unwrap();
    assert_eq!(claim, 2 * GPU_HOUR, "what has run is charged, the rest promised");
    assert_eq!(team.users.len(), 1);
    assert_eq!((team.roles.len(), team.asks.len(), team.transfers.len()), (1, 1, 1));
    assert_eq!((team.parent.as_str(), team.leaf, team.edits.len()), ("root", true, 1));
}

#[tokio::test]
async fn a_drain_names_who_is_protected_beyond_its_instant_and_breaks_nobody() {
    let (cluster, client) = cluster().await;
    let job = client.submit(&sleeper(&cluster, "default", 2)).await.unwrap();
    let runs = |view: &v1::JobView| view.promised_until_ms.is_some();
    let view = client.job_until(job, MINUTE, "runs", runs).await.unwrap();
    let node = "node-0".to_owned();
    let remove = v1::RemoveNodeRequest { node: node.clone() };
    let refused = client.api().remove_node(remove).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");

    let drain = |wanted_by_ms| v1::DrainRequest {
        node: node.clone(),
        reason: "fans".to_owned(),
        wanted_by_ms: Some(wanted_by_ms),
    };
    let refused = client.api().drain(drain(1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("ago; an instant to come, or a span from now"), "{refused}");
    // While it is protected.
    let soon = view.promised_until_ms.unwrap() - 60_000;
    let reply = client.api().drain(drain(soon)).await.unwrap().into_inner();
    assert_eq!(Some(reply.saves_from_ms), view.promised_until_ms);
    assert!(reply.empty_by_ms > reply.saves_from_ms);
    let beyond: Vec<_> = reply.protected_beyond.iter().map(|one| one.attempt.as_str()).collect();
    assert_eq!(beyond, ["job-1.1"]);
    let nodes = client.api().list_nodes(v1::ListNodesRequest {}).await.unwrap().into_inner().nodes;
    assert_eq!(nodes[0].empty_by_ms, Some(reply.empty_by_ms));
    assert_eq!(nodes[0].wanted_by_ms, Some(soon));
    let view = client.job(job).await.unwrap();
    assert_eq!(view.attempts[0].state(), v1::AttemptState::Running, "{view:#?}");
}

#[tokio::test]
async fn a_parked_job_waits_until_it_is_released_and_a_dry_run_says_what_would_be() {
    let (cluster, client) = cluster().await;
    let spec = sleeper(&cluster, "default", 4);
    let dry = v1::DryRunRequest { spec: Some(spec.clone().into()) };
    let runs = client.api().dry_run(dry).await.unwrap().into_inner().runs;
    let spans: Vec<_> = runs.iter().map(|run| run.min_runtime_ms / 3_600_000).collect();
    assert_eq!(spans, [0, 1, 4, 8]);
    assert_eq!(runs[1].starts(), v1::Standing::Protected, "{runs:#?}");
    assert_eq!(hours(&runs[1].pledge), 4);

    client.submit(&spec).await.unwrap();
    let second = client.submit(&spec).await.unwrap();
    let ask = |change: v1::JobChange| v1::ChangeJobRequest {
        job: second.to_string(),
        change: change.into(),
    };
    let reply = client.api().change_job(ask(v1::JobChange::Park)).await.unwrap();
    assert!(reply.into_inner().changed);
    let view = client.job(second).await.unwrap();
    assert!(view.parked.starts_with("by uid-") && view.reason.starts_with("Parked: "), "{view:#?}");
    client.api().change_job(ask(v1::JobChange::Release)).await.unwrap();
    assert_eq!(client.job(second).await.unwrap().parked, "");
    let refused = client.api().change_job(ask(v1::JobChange::Unspecified)).await.unwrap_err();
    assert_eq!(refused.message(), "ChangeJobRequest.change is missing");
}

#[tokio::test]
async fn a_policy_is_read_changed_whole_and_refused_with_what_would_be_accepted() {
    let (_cluster, client) = cluster().await;
    let get = || async {
        let reply = client.api().get_policy(v1::GetPolicyRequest {}).await.unwrap();
        reply.into_inner().policy.unwrap()
    };
    let set = |policy: v1::Policy| async {
        let request = v1::SetPolicyRequest { policy: Some(policy), version: None };
        client.api().set_policy(request).await.map(|reply| reply.into_inner().changed)
    };
    let mut policy = get().await;
    assert!(!set(policy.clone()).await.unwrap(), "as it was");
    policy.sharing.as_mut().unwrap().slack = 20_000;
    assert!(set(policy.clone()).await.unwrap());
    assert_eq!(get().await, policy);
    policy.sharing.as_mut().unwrap().slack = 1_000_001;
    let refused = set(policy.clone()).await.unwrap_err();
    assert_eq!(refused.message(), "slack: 100.0001 % given; 0 to 100 % is accepted");
    policy.sharing = None;
    let refused = set(policy).await.unwrap_err();
    assert_eq!(refused.message(), "Policy.sharing is missing");
}

#[tokio::test]
async fn a_policy_has_an_author_and_a_version_and_a_change_of_another_version_is_refused() {
    let (_cluster, client) = cluster().await;
    let get =
        || async { client.api().get_policy(v1::GetPolicyRequest {}).await.unwrap().into_inner() };
    let set = |policy: &v1::Policy, version| {
        let request = v1::SetPolicyRequest { policy: Some(policy.clone()), version };
        async { client.api().set_policy(request).await.map(|reply| reply.into_inner().changed) }
    };
    let first = get().await;
    assert!(first.by_configuration && first.set_ms.is_some(), "{first:?}");
    let mut policy = first.policy.clone().unwrap();
    policy.sharing.as_mut().unwrap().slack = 20_000;
    assert!(set(&policy, Some(first.version)).await.unwrap());
    let second = get().await;
    assert_eq!(second.by_uid, Some(nix::unistd::geteuid().as_raw()));
    assert!(second.version > first.version && second.set_ms >= first.set_ms);
    assert!(!set(&policy, Some(first.version)).await.unwrap(), "asked twice, it was made once");
    policy.sharing.as_mut().unwrap().slack = 30_000;
    let refused = set(&policy, Some(first.version)).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("changed the policy after you read it"), "{refused}");
    assert!(set(&policy, Some(second.version)).await.unwrap());
    let kind = |name: &str| v1::GpuRule { name: name.into(), product: name.into(), weight: 1000 };
    policy.sharing.as_mut().unwrap().gpu_types = vec![kind("h100"), kind("a100"), kind("h100")];
    let refused = set(&policy, None).await.unwrap_err();
    assert_eq!(refused.message(), "gpu_types: h100 is named twice; name each kind once");
}

#[tokio::test]
async fn what_is_asked_twice_is_made_once_and_what_changed_meanwhile_is_not_answered() {
    let (cluster, client) = cluster().await;
    change(&client, set("default", 500_000)).await.unwrap();
    for account in ["a", "b", "c"] {
        change(&client, set(account, 100_000)).await.unwrap();
    }
    let transfer = |to: &str, hours: i128| {
        Change::Transfer(Transfer {
            from: "a".into(),
            to: to.into(),
            amount: amount_bytes(hours * GPU_HOUR),
            permanent: false,
            key: "01JQ0000000000000000000001".into(),
        })
    };
    assert!(change(&client, transfer("b", 10)).await.unwrap());
    assert!(!change(&client, transfer("b", 10)).await.unwrap(), "under one key");
    let refused = change(&client, transfer("c", 10)).await.unwrap_err();
    assert!(refused.message().contains("used for another transfer"), "{refused}");
    assert_eq!(account(&client, "a").await.transfers.len(), 1);

    let ask = |millionths| {
        let (account, size, reason) = ("b".to_owned(), share(millionths), "more".to_owned());
        let change = Some(Change::Ask(Ask { account, size, reason }));
        let request = v1::ChangeAccountRequest { change };
        async { client.api().change_account(request).await.unwrap().into_inner().replaced }
    };
    assert_eq!(ask(110_000).await, None);
    assert_eq!(ask(120_000).await.and_then(|old| old.size), share(110_000));
    let answer = |millionths| {
        let (account, asked_by_uid) = ("b".to_owned(), nix::unistd::geteuid().as_raw());
        let size = share(millionths);
        Change::Answer(Answer { account, asked_by_uid, grant: true, size })
    };
    let refused = change(&client, answer(110_000)).await.unwrap_err();
    assert!(refused.message().contains("asks for 12 % in b by now"), "{refused}");
    assert!(change(&client, answer(120_000)).await.unwrap());

    let role = v1::Role::Member.into();
    let nobody = Change::SetRole(SetRole { account: "a".into(), uid: u32::MAX, role });
    let refused = change(&client, nobody).await.unwrap_err();
    assert!(refused.message().contains("4294967295 is nobody"), "{refused}");

    let page = |after: &str| {
        let request =
            v1::ListAccountsRequest { after: after.into(), limit: 2, ..Default::default() };
        async { client.api().list_accounts(request).await.map(tonic::Response::into_inner) }
    };
    let (mut all, mut after) = (Vec::new(), String::new());
    loop {
        let page = page(&after).await.unwrap();
        all.extend(page.accounts.into_iter().map(|one| one.account));
        after.clone_from(all.last().unwrap());
        if !page.more {
            break;
        }
    }
    assert_eq!(all, ["root", "default", "a", "b", "c"]);
    assert_eq!(page("gone").await.unwrap_err().code(), Code::NotFound);
    drop(cluster);
}

#[tokio::test]
async fn a_min_runtime_far_above_ones_own_runs_is_warned_about_and_accepted() {
    let (cluster, client) = cluster().await;
    let command = vec!["/bin/sleep".into(), "0.1".into()];
    let short = JobSpec { command, ..cluster.job("short", 2) };
    for _ in 0..5 {
        let job = client.submit(&short).await.unwrap();
        client.job_ended(job, MINUTE).await.unwrap();
    }
    let ask = |spec: JobSpec| {
        let (key, spec) = (ulid::Ulid::generate().to_string(), Some(spec.into()));
        async { client.api().submit(v1::SubmitRequest { key, spec }).await.unwrap().into_inner() }
    };
    let long = sleeper(&cluster, "default", 2);
    let dry = v1::DryRunRequest { spec: Some(long.clone().into()) };
    let dry = client.api().dry_run(dry).await.unwrap().into_inner().warnings;
    let [warning] = &dry[..] else { panic!("{dry:?}") };
    assert_eq!(warning.numbers["own_runs"], 5);
    assert!(warning.told.starts_with("min_runtime 1h is more than twice"), "{warning:?}");
    assert_eq!(ask(long).await.warnings, dry);
    assert_eq!(ask(sleeper(&cluster, "default", 1)).await.warnings, [], "of another shape");
}

#[tokio::test]
async fn a_report_of_more_windows_than_are_accepted_is_refused_with_how_many_are() {
    let (_cluster, client) = cluster().await;
    let report = async |weeks| {
        let request = v1::ReportRequest { weeks, below: String::new() };
        client.api().report(request).await.map(drop)
    };
    report(520).await.unwrap();
    let refused = report(521).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert_eq!(refused.message(), "weeks: 521 asked; 1 to 520 is accepted");
}
