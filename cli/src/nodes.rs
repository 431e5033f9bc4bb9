//! `nodes`, `drain`, `resume`, `node lost`, `node remove`, `status`.

use serde::Serialize;
use tidegate_model::Timestamp;
use tidegate_proto::v1;

use crate::args::{DrainArgs, NodeArgs, NodesArgs};
use crate::connect::{Api, Client};
use crate::exit::Failure;
use crate::retry::Patience;
use crate::show::out::{json, say};
use crate::show::table;
use crate::show::text::{counted, plain};
use crate::show::time::{self, away, coarse};
use crate::view::node::{Cluster, Node};
use crate::view::users::Users;

/// Lists nodes, or why they are drained.
///
/// # Errors
/// If the coordinator does not answer.
pub(crate) async fn list(api: &Api, args: &NodesArgs, as_json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Nodes {
        nodes: Vec<Node>,
    }
    let request = v1::ListNodesRequest {};
    let reply = api.read(async |mut client| client.list_nodes(request).await).await?;
    let mut users = Users::default();
    let mut nodes: Vec<_> =
        reply.nodes.into_iter().map(|node| Node::read(node, &mut users)).collect();
    if args.reasons {
        nodes.retain(|node| node.drain.is_some() || node.closed.is_some());
    }
    match (as_json, args.reasons) {
        (true, _) => json(&Nodes { nodes }),
        (false, true) => say(&table::reasons(&nodes)),
        (false, false) => say(&table::nodes(&nodes, time::now())),
    }
}

/// Drains a node.
///
/// # Errors
/// If there is no such node, it is not allowed, or the coordinator does not answer.
pub(crate) async fn drain(api: &Api, args: DrainArgs, as_json: bool) -> Result<(), Failure> {
    let node = args.node.to_string();
    let now = time::now();
    let wanted_by_ms = args.by.map(|when| when.instant(now).0);
    let request = v1::DrainRequest { node: node.clone(), reason: args.reason, wanted_by_ms };
    let reply = api.read(async |mut client| client.drain(request.clone()).await).await?;
    let drained = Drained::read(node, wanted_by_ms, reply);
    if as_json { json(&drained) } else { say(&drained.told(now)) }
}

/// What a drain has to wait for.
#[derive(Debug, Serialize)]
struct Drained {
    node: String,
    tasks_left: u32,
    /// When the last protection there ends.
    saves_from_ms: u64,
    /// By when it is empty at the latest.
    empty_by_ms: u64,
    wanted_by_ms: Option<u64>,
    protected_beyond: Vec<Beyond>,
}

/// An attempt whose protection outlasts the wanted instant.
#[derive(Debug, Serialize)]
struct Beyond {
    attempt: String,
    user: String,
    uid: u32,
    until_ms: u64,
}

impl Drained {
    fn read(node: String, wanted_by_ms: Option<u64>, reply: v1::DrainReply) -> Self {
        let v1::DrainReply { tasks_left, saves_from_ms, empty_by_ms, protected_beyond } = reply;
        let mut users = Users::default();
        let beyond = |v1::ProtectedAttempt { attempt, uid, until_ms }| {
            let user = users.name(uid);
            Beyond { attempt, user, uid, until_ms }
        };
        let protected_beyond = protected_beyond.into_iter().map(beyond).collect();
        Self { node, tasks_left, saves_from_ms, empty_by_ms, wanted_by_ms, protected_beyond }
    }

    fn told(&self, now: Timestamp) -> String {
        let node = &self.node;
        if self.tasks_left == 0 {
            return format!("{node} is drained");
        }
        let at = |ms: u64| away(Timestamp(ms), now);
        let mut lines = vec![format!(
            "{node} is draining: {} left; the last protection there ends {}, empty {} at the latest",
            counted(self.tasks_left, "task"),
            at(self.saves_from_ms),
            time::latest(Timestamp(self.empty_by_ms), now)
        )];
        lines.extend(self.protected_beyond.iter().map(|one| {
            let (attempt, user) = (plain(&one.attempt), plain(&one.user));
            let left = coarse(Timestamp(one.until_ms).since(now));
            format!("  {attempt} of {user} is protected beyond that: {left} more")
        }));
        lines.join("\n")
    }
}

/// Lets a node take work again.
///
/// # Errors
/// As [`drain`].
pub(crate) async fn resume(api: &Api, args: &NodeArgs, as_json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Resumed {
        node: String,
    }
    let node = args.node.to_string();
    let request = v1::ResumeRequest { node: node.clone() };
    api.read(async |mut client| client.resume(request.clone()).await).await?;
    if as_json { json(&Resumed { node }) } else { say(&format!("{node} takes work again")) }
}

/// Declares what ran on a node to be gone.
///
/// # Errors
/// As [`drain`].
pub(crate) async fn lost(api: &Api, args: &NodeArgs, as_json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Lost {
        node: String,
        /// Null = an earlier try lost them, and its answer was lost.
        tasks_lost: Option<u32>,
    }
    let node = args.node.to_string();
    let request = v1::DeclareNodeLostRequest { node: node.clone() };
    let ask = async |mut client: Client| client.declare_node_lost(request.clone()).await;
    let answer = api.ask(&Patience::of_reads(), ask).await?;
    let tasks_lost = Some(answer.value.tasks_lost).filter(|tasks| *tasks > 0 || answer.tries == 1);
    if as_json {
        return json(&Lost { node, tasks_lost });
    }
    let with_it = match tasks_lost {
        Some(tasks) => counted(tasks, "task"),
        None => "what it held".to_owned(),
    };
    say(&format!("{node} is declared lost, and {with_it} with it"))
}

/// Forgets a node that will not come back.
///
/// # Errors
/// As [`drain`].
pub(crate) async fn remove(api: &Api, args: &NodeArgs, as_json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Removed {
        node: String,
    }
    let node = args.node.to_string();
    let request = v1::RemoveNodeRequest { node: node.clone() };
    api.read(async |mut client| client.remove_node(request.clone()).await).await?;
    if as_json { json(&Removed { node }) } else { say(&format!("{node} is removed")) }
}

/// Shows the cluster.
///
/// # Errors
/// If the coordinator does not answer.
pub(crate) async fn status(api: &Api, as_json: bool) -> Result<(), Failure> {
    let request = v1::StatusRequest {};
    let reply = api.read(async |mut client| client.status(request).await).await?;
    let cluster = Cluster::from(reply);
    if as_json { json(&cluster) } else { say(&table::cluster(&cluster)) }
}
