//! `nodes`, `drain`, `resume`, `node lost`, `status`.

use serde::Serialize;
use tidegate_proto::v1;

use crate::args::{DrainArgs, NodeArgs, NodesArgs};
use crate::connect::Api;
use crate::exit::Failure;
use crate::show::out::{json, say};
use crate::show::table;
use crate::show::text::counted;
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
        nodes.retain(|node| node.drain.is_some());
    }
    match (as_json, args.reasons) {
        (true, _) => json(&Nodes { nodes }),
        (false, true) => say(&table::reasons(&nodes)),
        (false, false) => say(&table::nodes(&nodes)),
    }
}

/// Drains a node.
///
/// # Errors
/// If there is no such node, it is not allowed, or the coordinator does not answer.
pub(crate) async fn drain(api: &Api, args: DrainArgs, as_json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Drained {
        node: String,
        tasks_left: u32,
    }
    let node = args.node.to_string();
    let request = v1::DrainRequest { node: node.clone(), reason: args.reason };
    let reply = api.read(async |mut client| client.drain(request.clone()).await).await?;
    let tasks_left = reply.tasks_left;
    if as_json {
        return json(&Drained { node, tasks_left });
    }
    say(&match tasks_left {
        0 => format!("{node} is drained"),
        left => format!("{node} is draining: {} left", counted(left, "task")),
    })
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
        tasks_lost: u32,
    }
    let node = args.node.to_string();
    let request = v1::DeclareNodeLostRequest { node: node.clone() };
    let reply =
        api.read(async |mut client| client.declare_node_lost(request.clone()).await).await?;
    let tasks_lost = reply.tasks_lost;
    if as_json {
        return json(&Lost { node, tasks_lost });
    }
    say(&format!("{node} is declared lost, and {} with it", counted(tasks_lost, "task")))
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
