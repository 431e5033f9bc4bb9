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

impl Warning {
    /// Beside the answer, on standard error.
    pub(crate) fn remark(&self) {
        remark(&format!("warning: {}", self.told));
    }
}
