//! What is accepted, and seldom meant.

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_proto::v1;

use crate::show::out::remark;

/// In one sentence, with its numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Warning {
    pub(crate) told: String,
    pub(crate) numbers: BTreeMap<String, u64>,
}

impl From<v1::Warning> for Warning {
    fn from(v1::Warning { told, numbers }: v1::Warning) -> Self {
        Self { told, numbers: numbers.into_iter().collect() }
    }
}

/// Warns of a min runtime.
const OF_MIN_RUNTIME: &str = "min_runtime_ms";

/// Whose choice the min runtime of a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MinRuntime {
    Given,
    /// Nobody asked for it: that it is long says nothing of what somebody wants.
    Default,
}

impl MinRuntime {
    /// What is worth saying to whoever chose so.
    pub(crate) fn worth_saying(self, warnings: Vec<v1::Warning>) -> Vec<Warning> {
        let all = warnings.into_iter().map(Warning::from);
        match self {
            Self::Given => all.collect(),
            Self::Default => {
                all.filter(|warning| !warning.numbers.contains_key(OF_MIN_RUNTIME)).collect()
            }
        }
    }
}

impl Warning {
    /// Beside the answer, on standard error.
    pub(crate) fn remark(&self) {
        remark(&format!("warning: {}", self.told));
    }
}
