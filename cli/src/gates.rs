//! `gate`: what storage targets may carry, who writes and who waits.

use serde::Serialize;
use serde_json::json;
use tidegate_model::StorageName;
use tidegate_proto::v1;
use tidegate_proto::v1::change_gate_request::{Change, Pause, Resume};

use crate::args::{GateArgs, GateCommand, SetGateArgs};
use crate::connect::Api;
use crate::exit::Failure;
use crate::show::{out, table, time};
use crate::view::gate::Gate;
use crate::view::users::Users;

/// Shows or changes gates.
///
/// # Errors
/// If there is no such target, it is not allowed, or the coordinator does not answer.
pub(crate) async fn gate(api: &Api, args: GateArgs, as_json: bool) -> Result<(), Failure> {
    match args.command {
        None => show(api, args.storage, as_json).await,
        Some(GateCommand::Set(args)) => set(api, args, as_json).await,
        Some(GateCommand::Pause(args)) => {
            let change = Change::Pause(Pause { reason: args.reason });
            let told = "is paused: who writes goes on, nobody else begins";
            changed(api, &args.storage, change, told, as_json).await
        }
        Some(GateCommand::Resume(args)) => {
            changed(api, &args.storage, Change::Resume(Resume {}), "is open", as_json).await
        }
    }
}

async fn show(api: &Api, storage: Option<StorageName>, as_json: bool) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Gates {
        gates: Vec<Gate>,
    }
    let one = storage.is_some();
    let gates = read(api, storage).await?;
    let now = time::now();
    match (as_json, gates.as_slice()) {
        (true, _) => out::json(&Gates { gates }),
        (false, []) => out::say("no storage target has limits, and nobody writes a checkpoint"),
        (false, gates) if one => {
            let shown: Vec<_> = gates.iter().map(|gate| table::gate(gate, now)).collect();
            out::say(&shown.join("\n\n"))
        }
        (false, gates) => out::say(&table::gates(gates, now)),
    }
}

async fn read(api: &Api, storage: Option<StorageName>) -> Result<Vec<Gate>, Failure> {
    let request = v1::ListGatesRequest { storage: storage.map(|storage| storage.to_string()) };
    let reply = api.read(async |mut client| client.list_gates(request.clone()).await).await?;
    let mut users = Users::default();
    Ok(reply.gates.into_iter().map(|gate| Gate::read(gate, &mut users)).collect())
}

/// What is not named stays.
async fn set(api: &Api, args: SetGateArgs, as_json: bool) -> Result<(), Failure> {
    let request = v1::ListGatesRequest { storage: None };
    let reply = api.read(async |mut client| client.list_gates(request.clone()).await).await?;
    let name = args.storage.to_string();
    let known = reply.gates.into_iter().find(|gate| gate.storage == name);
    let mut rule = known.and_then(|gate| gate.rule).unwrap_or_default();
    if let Some(cap) = args.cap {
        rule.cap_bytes_per_s = cap.value().map(|cap| cap.0);
    }
    if let Some(node) = args.node {
        rule.node_bytes_per_s = node.value().map(|node| node.0);
    }
    if let Some(reads) = args.reads {
        rule.reads_bytes_per_s = reads.value().map(|reads| reads.0);
    }
    if let Some(floor) = args.floor {
        rule.floor_bytes_per_s = floor.value().map(|floor| floor.0);
    }
    if let Some(writers) = args.writers {
        rule.writers = writers.value().map(|writers| writers.0);
    }
    if let Some(files) = args.files {
        rule.files_per_s = files.value().map(|files| files.0);
    }
    if !args.hours.is_empty() {
        let hours = args.hours.into_iter().filter_map(|hours| hours.value());
        rule.hours = hours.map(|hours| hours.0).collect();
    }
    changed(api, &args.storage, Change::Set(rule), "has these limits", as_json).await
}

async fn changed(
    api: &Api,
    storage: &StorageName,
    change: Change,
    told: &str,
    as_json: bool,
) -> Result<(), Failure> {
    let request = v1::ChangeGateRequest { storage: storage.to_string(), change: Some(change) };
    let reply = api.read(async |mut client| client.change_gate(request.clone()).await).await?;
    if as_json {
        return out::json(&json!({ "storage": storage.to_string(), "changed": reply.changed }));
    }
    let already = if reply.changed { "" } else { " (it was so already)" };
    out::say(&format!("{storage} {told}{already}"))
}
