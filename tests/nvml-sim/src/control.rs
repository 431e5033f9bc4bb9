//! The control socket: one JSON object per line, one answer per line.
//!
//! | command | effect |
//! |---|---|
//! | `{"op":"event","gpu":0,"kind":8,"data":79}` | an event, here Xid 79; `gi`, `ci` name a MIG instance |
//! | `{"op":"lose","gpu":0}`, `{"op":"recover","gpu":0}` | falls off the bus, comes back |
//! | `{"op":"patch","gpu":0,"set":{"temperature":91}}` | changes fields of a GPU |
//! | `{"op":"fail","func":"nvmlDeviceGetName","code":15}` | the function returns the code; 0: no more |
//! | `{"op":"delay","func":"*","ms":250}` | calls take so long; 0: no more |
//! | `{"op":"hang","func":"nvmlDeviceGetName"}` | calls do not return until `{"op":"release"}` |
//! | `{"op":"driver","version":"590.10"}` | another driver version |
//! | `{"op":"calls"}` | how often each function was called |
//!
//! `"func":"*"` means every function. Answers are `{"ok":true,...}` or `{"error":"..."}`; that of
//! an event tells by `delivered_sets` how many event sets were registered for it.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::description::simulated_name;
use crate::events::Event;
use crate::machine::Gpu;
use crate::simulation::{self, EVERY_FUNCTION, Simulation};
use crate::symbols::FUNCTIONS;

/// A command is short; a longer line is not meant for this socket.
const MAX_LINE: u64 = 64 * 1024;
/// A test has one connection, or a few.
const MAX_CONNECTIONS: usize = 16;
/// Longer than any caller's patience; `hang` is for more.
const MAX_DELAY_MS: u64 = 600_000;
/// NVML's value for "no MIG instance".
pub(crate) const NO_INSTANCE: u32 = u32::MAX;

/// One line to the socket, or one entry of the file's `script`.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Command {
    Event {
        gpu: usize,
        kind: u64,
        #[serde(default)]
        data: u64,
        #[serde(default = "no_instance")]
        gi: u32,
        #[serde(default = "no_instance")]
        ci: u32,
    },
    Lose {
        gpu: usize,
    },
    Recover {
        gpu: usize,
    },
    Patch {
        gpu: usize,
        set: Patch,
    },
    Fail {
        func: String,
        code: u32,
    },
    Delay {
        func: String,
        ms: u64,
    },
    Hang {
        func: String,
    },
    Release {},
    Driver {
        version: String,
    },
    Calls {},
}

/// The fields of a GPU that may change while it runs.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Patch {
    uuid: Option<String>,
    name: Option<String>,
    memory_bytes: Option<u64>,
    processes: Option<Vec<(u32, u64)>>,
    temperature: Option<u32>,
    utilization: Option<u32>,
    memory_utilization: Option<u32>,
}

impl Command {
    /// Does it, and says what to answer besides `ok`.
    pub(crate) fn obey(self, simulation: &mut Simulation) -> Result<Value, String> {
        let machine = simulation.machine.as_mut().ok_or("not initialised")?;
        let script = &mut simulation.script;
        match self {
            Self::Event { gpu, kind, data, gi, ci } => {
                machine.gpu_mut(gpu)?;
                let event = Event { slot: gpu, kind, data, gpu_instance: gi, compute_instance: ci };
                return Ok(json!({ "delivered_sets": machine.events.deliver(event) }));
            }
            Self::Lose { gpu } => machine.gpu_mut(gpu)?.lost = true,
            Self::Recover { gpu } => machine.gpu_mut(gpu)?.lost = false,
            Self::Patch { gpu, set } => set.apply(machine.gpu_mut(gpu)?),
            Self::Fail { func, code: 0 } => drop(script.failures.remove(known(&func)?)),
            Self::Fail { func, code } => {
                script.failures.insert(known(&func)?.to_owned(), code);
            }
            Self::Delay { ms, .. } if ms > MAX_DELAY_MS => {
                return Err(format!("ms {ms}: at most {MAX_DELAY_MS} expected; hang is for ever"));
            }
            Self::Delay { func, ms: 0 } => drop(script.delays.remove(known(&func)?)),
            Self::Delay { func, ms } => {
                script.delays.insert(known(&func)?.to_owned(), Duration::from_millis(ms));
            }
            Self::Hang { func } => {
                script.hanging.insert(known(&func)?.to_owned());
            }
            Self::Release {} => script.hanging.clear(),
            Self::Driver { version } => machine.driver = version,
            Self::Calls {} => return Ok(json!({ "calls": simulation.calls })),
        }
        Ok(json!({}))
    }
}

impl Patch {
    fn apply(self, gpu: &mut Gpu) {
        assign(&mut gpu.uuid, self.uuid);
        assign(&mut gpu.name, self.name.map(simulated_name));
        assign(&mut gpu.memory_bytes, self.memory_bytes);
        assign(&mut gpu.processes, self.processes);
        assign(&mut gpu.temperature, self.temperature);
        assign(&mut gpu.utilization, self.utilization);
        assign(&mut gpu.memory_utilization, self.memory_utilization);
    }
}

/// Makes the socket and serves it for the life of the process. One left by a process before is
/// replaced: the newest process owns the path.
pub(crate) fn serve(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(path)?;
    let accept = move || {
        for stream in listener.incoming().flatten() {
            admit(stream);
        }
    };
    std::thread::Builder::new().name("nvml-sim".to_owned()).spawn(accept).map(drop)
}

fn admit(mut stream: UnixStream) {
    static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);
    if CONNECTIONS.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
        CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
        let why = format!("more than {MAX_CONNECTIONS} connections");
        answer(&mut stream, &json!({ "error": why })).ok();
        return;
    }
    let converse = move || {
        converse(&stream).ok();
        CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
    };
    if std::thread::Builder::new().spawn(converse).is_err() {
        CONNECTIONS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Until the other side closes.
fn converse(mut stream: &UnixStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.by_ref().take(MAX_LINE).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let done = serde_json::from_str::<Command>(&line)
            .map_err(|error| error.to_string())
            .and_then(|command| simulation::change(|simulation| command.obey(simulation)));
        answer(
            &mut stream,
            &match done {
                Ok(Value::Object(mut fields)) => {
                    fields.insert("ok".to_owned(), Value::Bool(true));
                    Value::Object(fields)
                }
                Ok(other) => other,
                Err(why) => json!({ "error": why }),
            },
        )?;
    }
}

fn answer(stream: &mut impl Write, value: &Value) -> std::io::Result<()> {
    stream.write_all(format!("{value}\n").as_bytes())
}

fn known(function: &str) -> Result<&str, String> {
    if function == EVERY_FUNCTION || FUNCTIONS.contains(&function) {
        return Ok(function);
    }
    Err(format!("func {function:?}: expected {EVERY_FUNCTION:?} or one of {FUNCTIONS:?}"))
}

fn assign<T>(field: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *field = value;
    }
}

fn no_instance() -> u32 {
    NO_INSTANCE
}
