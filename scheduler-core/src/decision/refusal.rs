//! Why a request changes nothing, in words for whoever asked.

use std::fmt;

use tidegate_model::{DecisionSeq, JobId, NodeName};

use crate::accounts::Role;
use crate::policy::Author;

/// Why a request changed nothing: what was wrong and what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No such job, or it ended more than the kept span ago.
    NoSuchJob(JobId),
    /// No such node.
    NoSuchNode(NodeName),
    /// Only the owner or an admin may.
    NotYours(JobId),
    /// Only an admin may.
    AdminOnly,
    /// Only an admin may submit a gang beyond what one may hold.
    WholeCluster,
    /// The key was used for a job with another spec.
    KeyReused {
        /// The job that has the key.
        job: JobId,
    },
    /// No gang of this cluster's nodes could ever serve it.
    Unsatisfiable {
        /// With the figures, and what would be accepted.
        why: String,
    },
    /// Protected jobs of so many GPUs must have passed a rehearsal.
    NotRehearsed {
        /// What of it is known, and what would help.
        why: String,
    },
    /// No node has reported GPUs yet; asking again later may succeed.
    NoGpusYet,
    /// The queue is full; asking again later may succeed.
    QueueFull {
        /// How many jobs may be alive at once.
        limit: u32,
    },
    /// No such account, or it is not a leaf.
    NoSuchAccount {
        /// The path given.
        given: String,
        /// What would be accepted.
        why: String,
    },
    /// Only with that role in that account or above.
    RoleMissing {
        /// The account.
        account: String,
        /// What is needed there.
        needed: Role,
    },
    /// A budget, a role or a policy that cannot hold.
    CannotHold {
        /// The rule it breaks, with the figures, and what would be accepted.
        why: String,
    },
    /// The policy was changed after it was read.
    PolicyMoved {
        /// By whom.
        by: Author,
        /// The change.
        record: DecisionSeq,
    },
    /// A drain, and a pause of a gate, need a reason.
    ReasonMissing,
    /// The node is heard from; only a silent node can be declared lost.
    NodeNotSilent(NodeName),
    /// Only a silent node on which nothing is placed can be removed.
    NodeInUse(NodeName),
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSuchJob(job) => {
                write!(out, "{job} is not known here; `tidegate jobs --all` lists what is")
            }
            Self::NoSuchNode(node) => {
                write!(out, "no node is named {node}; `tidegate nodes` lists them")
            }
            Self::NotYours(job) => {
                write!(
                    out,
                    "{job} belongs to another user; its owner, a manager of its account or an admin may do this"
                )
            }
            Self::AdminOnly => out.write_str("only an admin of the cluster may do this"),
            Self::WholeCluster => out.write_str(
                "whole_cluster: only an admin of the cluster may submit with it; leave it out, or ask \
                 an admin to submit the job",
            ),
            Self::KeyReused { job } => {
                write!(out, "the submit key was used for {job} with another spec; use a new key")
            }
            Self::Unsatisfiable { why } | Self::NotRehearsed { why } => out.write_str(why),
            Self::NoGpusYet => {
                out.write_str("no node has reported GPUs yet; try again when one has")
            }
            Self::QueueFull { limit } => {
                write!(out, "{limit} jobs are alive, as many as the policy allows; try again later")
            }
            Self::NoSuchAccount { given, why } => write!(out, "account {given}: {why}"),
            Self::RoleMissing { account, needed } => {
                let needed = match needed {
                    Role::Reader => "reader, member or manager",
                    Role::Member => "member or manager",
                    Role::Manager => "manager",
                };
                write!(out, "only a {needed} of {account} or an admin may do this")
            }
            Self::CannotHold { why } => out.write_str(why),
            Self::PolicyMoved { by, record } => write!(
                out,
                "{by} changed the policy after you read it ({record}); look at it again with \
                 `tidegate policy show`, then repeat yours"
            ),
            Self::ReasonMissing => out.write_str("a reason is needed, and shown to everybody; give --reason TEXT"),
            Self::NodeInUse(node) => write!(
                out,
                "{node} is heard from or holds tasks; drain it, end its agent, then remove it"
            ),
            Self::NodeNotSilent(node) => {
                write!(out, "{node} is heard from; only a silent node can be declared lost")
            }
        }
    }
}
