//! The JSON file that describes a node.
//!
//! ```json
//! {"driver": "580.95.05", "gpus": [{"uuid": "GPU-1", "name": "NVIDIA H100 80GB HBM3",
//!   "pci": "00000000:01:00.0", "memory_bytes": 85899345920, "processes": [[4242, 1048576]]}]}
//! ```
//! or, for so many GPUs of the default kind with UUIDs that differ between nodes,
//! ```json
//! {"node": "node-a", "gpus": 8}
//! ```
//! All but `gpus` may be left out; a GPU needs a `uuid` unless the file names the `node`. More
//! fields of a GPU: `temperature`, `utilization`, `memory_utilization`, `lost`. `script` is a list
//! of commands as the [`crate::control`] socket takes them, done before the first call.

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use crate::control::Command;
use crate::machine::{Gpu, Machine, PciAddress};

/// An agent takes no more of a node; one with more is a mistake in the file.
const MAX_GPUS: usize = 128;
/// Every name says it, so that no screenshot can be taken for a real one.
const SIMULATED: &str = "(simulated)";

const DEFAULT_DRIVER: &str = "580.95.05";
const DEFAULT_NAME: &str = "NVIDIA H100 80GB HBM3 (simulated)";
/// What an H100 with 80 GB reports.
const DEFAULT_MEMORY_BYTES: u64 = 81_559 << 20;
const DEFAULT_TEMPERATURE: u32 = 34;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default = "default_driver")]
    driver: String,
    node: Option<String>,
    #[serde(deserialize_with = "gpus")]
    gpus: Vec<GpuDescription>,
    #[serde(default)]
    script: Vec<Command>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuDescription {
    uuid: Option<String>,
    name: Option<String>,
    pci: Option<String>,
    memory_bytes: Option<u64>,
    #[serde(default)]
    processes: Vec<(u32, u64)>,
    temperature: Option<u32>,
    #[serde(default)]
    utilization: u32,
    #[serde(default)]
    memory_utilization: u32,
    #[serde(default)]
    lost: bool,
}

/// The node a file describes, and the commands to begin with.
pub(crate) fn parse(text: &str) -> Result<(Machine, Vec<Command>), String> {
    let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if file.gpus.len() > MAX_GPUS {
        return Err(format!("{} GPUs, at most {MAX_GPUS} expected", file.gpus.len()));
    }
    let gpus = file
        .gpus
        .into_iter()
        .zip(0_u32..)
        .map(|(gpu, index)| gpu.check(index, file.node.as_deref()))
        .collect::<Result<_, _>>()?;
    Ok((Machine::new(file.driver, gpus), file.script))
}

/// A GPU's name as every caller sees it.
pub(crate) fn simulated_name(name: String) -> String {
    if name.contains(SIMULATED) { name } else { format!("{name} {SIMULATED}") }
}

impl GpuDescription {
    fn check(self, index: u32, node: Option<&str>) -> Result<Gpu, String> {
        let uuid = match (self.uuid, node) {
            (Some(uuid), _) => uuid,
            (None, Some(node)) => derived_uuid(node, index),
            (None, None) => return Err(format!("GPU {index} needs a uuid, or the file a node")),
        };
        let pci = match self.pci {
            Some(pci) => PciAddress::parse(&pci)
                .ok_or_else(|| format!("pci {pci:?}: 00000000:01:00.0 expected"))?,
            None => PciAddress { domain: 0, bus: index + 1, device: 0 },
        };
        Ok(Gpu {
            uuid,
            name: simulated_name(self.name.unwrap_or_else(|| DEFAULT_NAME.to_owned())),
            pci,
            memory_bytes: self.memory_bytes.unwrap_or(DEFAULT_MEMORY_BYTES),
            processes: self.processes,
            temperature: self.temperature.unwrap_or(DEFAULT_TEMPERATURE),
            utilization: self.utilization,
            memory_utilization: self.memory_utilization,
            lost: self.lost,
        })
    }
}

fn default_driver() -> String {
    DEFAULT_DRIVER.to_owned()
}

/// A number of GPUs, or a list of them.
fn gpus<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<GpuDescription>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let Some(count) = value.as_u64() else {
        return serde_json::from_value(value)
            .map_err(|error| de::Error::custom(format!("gpus, a number or a list: {error}")));
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(MAX_GPUS + 1);
    Ok(std::iter::repeat_with(GpuDescription::default).take(count).collect())
}

/// The same for the same node and index, and different for others.
fn derived_uuid(node: &str, index: u32) -> String {
    let halves = ["a", "b"].map(|half| format!("{:016x}", fnv(&format!("{half}/{node}/{index}"))));
    let digits = halves.concat();
    let (a, rest) = digits.split_at(8);
    let (b, rest) = rest.split_at(4);
    let (c, rest) = rest.split_at(4);
    let (d, e) = rest.split_at(4);
    format!("GPU-{a}-{b}-{c}-{d}-{e}")
}

/// FNV-1a, 64 bits.
fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
