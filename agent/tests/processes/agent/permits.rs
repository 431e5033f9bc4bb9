//! Permits to write, from the coordinator's side of an agent.

use serde_json::json;
use tidegate_agent::permits::PermitRecord;
use tidegate_agent::since_boot::SinceBoot;
use tidegate_model::{Bandwidth, Permit, WriteClass};

use super::*;

const LENGTH: Span = Span::minutes(10);

/// A plan that lets the job of a relay write.
fn granting(node: &Node, ask: u64, rate: u64) -> Order {
    let mut launch = relay(&node.bench);
    let (rate, after) = (Some(Bandwidth(rate)), Some(Bandwidth(7)));
    launch.permit =
        Some(Permit::Granted { ask, rate, length: LENGTH, after, rated: DecisionSeq(1) });
    Order::Run(Box::new(launch))
}

/// A job that has asked; the number under which that was reported.
async fn asked() -> (Node, Link, Client, u64) {
    let mut node = Node::new();
    let mut link = node.link().await;
    link.begin().await;
    link.plan(1, &[(T, prepare())]).await;
    link.seen(T, is_prepared).await;
    link.plan(2, &[(T, Order::Run(Box::new(relay(&node.bench))))]).await;
    link.seen(T, |seen| *seen == TaskSeen::Running).await;
    let mut client = Client::of(&node.bench);
    let wish = json!({"ask": {"bytes": 100, "class": "restore", "files": 2, "wait_s": 9}});
    assert_eq!(client.ask(&wish)["wait"]["ask"], 1);
    loop {
        let report = link.report().await;
        let Some(ask) = report.tasks.get(&task(T)).and_then(|told| told.ask) else { continue };
        assert_eq!((ask.ask.number, ask.ask.class), (1, WriteClass::Restore));
        assert_eq!((ask.ask.bytes, ask.ask.files), (Bytes(100), 2));
        assert_eq!((ask.ask.patience, ask.done), (Some(Span::seconds(9)), false));
        assert!(ask.waited < Span::minutes(1), "{ask:?}");
        assert!(report.renew > 0);
        return (node, link, client, report.renew);
    }
}

/// The number of the next heartbeat.
async fn numbered(link: &mut Link) -> u64 {
    loop {
        let report = link.report().await;
        if report.tasks.is_empty() {
            return report.renew;
        }
    }
}

/// When the permit that its shim was told of ends; none before that.
fn end_of_permit(node: &Node) -> Option<SinceBoot> {
    match load(&node.bench.task_dir(T).permit()).unwrap()? {
        PermitRecord::Granted { until_ms, .. } => Some(until_ms),
        _ => None,
    }
}

/// What the job is told next. Not on the thread that serves the agent.
async fn heard(mut client: Client) -> (Client, serde_json::Value) {
    let hear = tokio::task::spawn_blocking(move || {
        let told = client.hear().unwrap();
        (client, told)
    });
    timeout(PATIENCE, hear).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_permit_holds_from_a_moment_of_which_the_coordinator_has_heard_and_is_renewed() {
    let before = SinceBoot::now();
    let (node, mut link, client, number) = asked().await;
    link.plan(3, &[(T, granting(&node, 1, 50))]).await;
    while numbered(&mut link).await <= number + 1 {}
    assert!(!node.bench.task_dir(T).permit().exists(), "nobody knows from when on it would hold");
    let after = SinceBoot::now();
    link.say(to_agent::Message::Renewed(number)).await;
    let (client, told) = heard(client).await;
    assert_eq!(told["grant"]["bytes_per_s"], 50);
    let first = end_of_permit(&node).unwrap();
    assert!(before.plus(LENGTH) < first && first <= after.plus(LENGTH), "from the ask on");
    let second = loop {
        let number = numbered(&mut link).await;
        link.say(to_agent::Message::Renewed(number)).await;
        if let Some(end) = end_of_permit(&node).filter(|end| *end > first) {
            break end;
        }
    };
    assert!(second.since(first) > Span::seconds(1), "a file for each second at most");
    link.plan(4, &[(T, granting(&node, 1, 60))]).await;
    let (client, told) = heard(client).await;
    assert_eq!(told["grant"]["bytes_per_s"], 60);
    let mut client = client;
    client.ask(&json!({"done": {"permit": 1}}));
    link.told(T, |told| told.ask.is_some_and(|ask| ask.done)).await;
    while numbered(&mut link).await > 0 {}
}

#[tokio::test]
async fn a_permit_goes_on_when_agent_and_starter_are_killed() {
    let (mut node, link, client, number) = asked().await;
    link.plan(3, &[(T, granting(&node, 1, 50))]).await;
    link.say(to_agent::Message::Renewed(number)).await;
    let (client, told) = heard(client).await;
    assert_eq!(told["grant"]["bytes_per_s"], 50);
    node.kill_agent();
    node.bench.kill_starter();
    let mut client = client;
    let held = client.ask(&json!({"renew": {"permit": 1}}));
    assert_eq!(held["grant"]["bytes_per_s"], 50);
    let before = end_of_permit(&node).unwrap();
    node.bench.start_starter();
    node.agent = Node::start_agent(&node.bench);
    let mut link = node.link().await;
    let (_, report) = link.begin().await;
    assert!(report.tasks[&task(T)].ask.is_some_and(|ask| ask.ask.number == 1 && !ask.done));
    link.plan(3, &[(T, granting(&node, 1, 50))]).await;
    link.say(to_agent::Message::Renewed(report.renew)).await;
    while end_of_permit(&node) <= Some(before) {
        let number = numbered(&mut link).await;
        link.say(to_agent::Message::Renewed(number)).await;
    }
    link.plan(4, &[(T, granting(&node, 1, 60))]).await;
    let (_client, told) = heard(client).await;
    assert_eq!(told["grant"]["bytes_per_s"], 60, "and nothing before");
}

#[tokio::test]
async fn an_answer_to_an_earlier_ask_is_not_handed_on() {
    let (node, link, mut client, number) = asked().await;
    link.say(to_agent::Message::Renewed(number)).await;
    let wish = json!({"ask": {"bytes": 5, "class": "final"}});
    assert_eq!(client.ask(&wish)["wait"]["ask"], 2);
    link.plan(3, &[(T, granting(&node, 1, 50))]).await;
    link.plan(4, &[(T, granting(&node, 2, 60))]).await;
    let (_client, told) = heard(client).await;
    assert_eq!(told["grant"]["permit"], 2);
}

#[tokio::test]
async fn what_a_task_writes_is_measured_also_in_a_child_and_is_nothing_when_it_stops() {
    let mut node = Node::new();
    let mut link = node.link().await;
    link.begin().await;
    link.plan(1, &[(T, prepare())]).await;
    link.seen(T, is_prepared).await;
    let write = "until [ -e go ]; do head -c 1000000 /dev/zero >/dev/null; sleep 0.01; done";
    let script = format!("sh -c '{write}'; until [ -e end ]; do sleep 0.01; done");
    link.plan(2, &[(T, node.run(&script))]).await;
    let writes = async |link: &mut Link| loop {
        if let Some(rate) = link.report().await.writes.get(&task(T)) {
            return rate.0;
        }
    };
    let rate = writes(&mut link).await;
    assert!((1 << 20..1_000_000_000).contains(&rate), "{rate}");
    node.bench.touch("go");
    while writes(&mut link).await > 0 {}
    node.bench.touch("end");
    link.ended(T).await;
}
