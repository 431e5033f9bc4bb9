//! What the node is: GPUs and host. Facts only.

pub(crate) mod gpu;
pub(crate) mod host;
pub(crate) mod writes;
