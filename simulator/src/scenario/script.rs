//! Reads what happens in a scenario.

mod gate;
mod job;

use tidegate_model::{AccountPath, Bandwidth, NodeName, StorageName, Timestamp, UserId};

use scheduler_core::{AccountRequest, Cut, GateRequest, Policy, Role};

use super::Unreadable;
use super::values;
use crate::cluster::NodeForm;
use crate::world::EPOCH;

pub(super) use self::job::JobForm;

/// All that happens.
#[derive(Debug, Clone, Default)]
pub(super) struct Script {
    pub(super) nodes: Vec<NodeForm>,
    pub(super) policy: Policy,
    /// Before the beginning.
    pub(super) accounts: Vec<(AccountRequest, UserId)>,
    pub(super) steps: Vec<(Timestamp, Step)>,
    pub(super) until: Option<Timestamp>,
}

/// One thing that happens.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Submit(Vec<String>, Box<JobForm>),
    Job(JobVerb, Vec<String>, UserId),
    Node(NodeVerb, Vec<NodeName>, UserId),
    Drain {
        node: NodeName,
        why: String,
        wanted_by: Option<Timestamp>,
        by: UserId,
    },
    /// Why the node takes no new work; empty = it does.
    Close {
        node: NodeName,
        why: String,
    },
    Account(AccountRequest, UserId),
    Gate(StorageName, GateRequest, UserId),
    /// What storage carries from now on.
    Server(Bandwidth),
    Policy(String, String),
    Down,
    Restart,
    Show(Vec<String>),
}

/// What befalls a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JobVerb {
    Cancel,
    Fail,
    Commit,
    Park,
    Release,
    Elder,
    Drop,
    Idle,
    Busy,
}

const JOB_VERBS: [(&str, JobVerb); 9] = [
    ("cancel", JobVerb::Cancel),
    ("fail", JobVerb::Fail),
    ("commit", JobVerb::Commit),
    ("park", JobVerb::Park),
    ("release", JobVerb::Release),
    ("elder", JobVerb::Elder),
    ("drop", JobVerb::Drop),
    ("idle", JobVerb::Idle),
    ("busy", JobVerb::Busy),
];

/// What befalls a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeVerb {
    Resume,
    Silent,
    Back,
    Lose,
    Reboot,
    Remove,
}

const NODE_VERBS: [(&str, NodeVerb); 6] = [
    ("resume", NodeVerb::Resume),
    ("silent", NodeVerb::Silent),
    ("back", NodeVerb::Back),
    ("lose", NodeVerb::Lose),
    ("reboot", NodeVerb::Reboot),
    ("remove", NodeVerb::Remove),
];

/// Reads all lines.
pub(super) fn parse(text: &str) -> Result<Script, Unreadable> {
    let mut script = Script::default();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        script.read(line).map_err(|why| Unreadable { line: number, why })?;
    }
    Ok(script)
}

impl Script {
    fn read(&mut self, line: &str) -> Result<(), String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (first, rest) = words.split_first().ok_or("an empty line")?;
        if let Some(at) = values::instant(first) {
            if self.steps.last().is_some_and(|(last, _)| at < *last) {
                return Err(format!("{first} is before the line above"));
            }
            let steps = step(line, rest)?;
            self.steps.extend(steps.into_iter().map(|step| (at, step)));
            return Ok(());
        }
        match (*first, rest) {
            ("cluster", groups) => self.add_nodes(groups),
            ("type", [name, weight @ ..]) => {
                let rule = values::gpu_rule(name, weight.first().copied())?;
                self.policy.sharing.gpu_types.push(rule);
                Ok(())
            }
            ("policy", [key, value]) => values::set_policy(&mut self.policy, key, value),
            ("account" | "role", _) => {
                let request = account_request(first, rest)?;
                self.accounts.push((request, by(rest)?));
                Ok(())
            }
            ("gate", _) => {
                let (storage, request) = gate::gate(line, rest)?;
                self.steps.push((EPOCH, Step::Gate(storage, request, by(rest)?)));
                Ok(())
            }
            ("until", [at]) => {
                self.until = Some(values::instant(at).ok_or("until is followed by an instant")?);
                Ok(())
            }
            _ => Err(format!(
                "{first:?}: an instant, cluster, type, policy, account, role, gate or until is \
                 accepted"
            )),
        }
    }

    /// `4x8`, or `a:2x8` for a block, or `2x8=h100` for a kind.
    fn add_nodes(&mut self, groups: &[&str]) -> Result<(), String> {
        for group in groups {
            let wrong = || format!("{group:?}: 4x8, a:2x8 or 2x8=h100 is accepted");
            let (block, rest) = group.split_once(':').unwrap_or(("", group));
            let (form, product) = rest.split_once('=').unwrap_or((rest, "simulated"));
            let (count, gpus) = form.split_once('x').ok_or_else(wrong)?;
            let count: usize = count.parse().map_err(|_not_one| wrong())?;
            let gpus: u32 = gpus.parse().map_err(|_not_one| wrong())?;
            for _ in 0..count {
                let name = format!("n{}", self.nodes.len().saturating_add(1));
                let name = name.parse().map_err(|error| format!("{error}"))?;
                let (block, product) = (block.to_owned(), product.to_owned());
                self.nodes.push(NodeForm { name, gpus, block, product });
            }
        }
        Ok(())
    }
}

fn step(line: &str, words: &[&str]) -> Result<Vec<Step>, String> {
    let (verb, rest) = words.split_first().ok_or("an instant is followed by what happens")?;
    if let Some((_, verb)) = JOB_VERBS.iter().find(|(name, _)| name == verb) {
        return Ok(vec![Step::Job(*verb, names(rest)?, by(rest)?)]);
    }
    if let Some((_, verb)) = NODE_VERBS.iter().find(|(name, _)| name == verb) {
        return Ok(vec![Step::Node(*verb, nodes(&names(rest)?)?, by(rest)?)]);
    }
    Ok(match (*verb, rest) {
        ("submit", [named, options @ ..]) => {
            vec![Step::Submit(expand(named)?, Box::new(job::form(options)?))]
        }
        ("drain", [named, options @ ..]) => drains(line, named, options)?,
        ("close", [named, ..]) => closes(named, quoted(line))?,
        ("open", [named]) => closes(named, "")?,
        ("set" | "transfer" | "delete" | "role", _) => {
            vec![Step::Account(account_request(verb, rest)?, by(rest)?)]
        }
        ("gate", _) => {
            let (storage, request) = gate::gate(line, rest)?;
            vec![Step::Gate(storage, request, by(rest)?)]
        }
        ("server", [carries]) => {
            let carries = carries.parse().map_err(|error| format!("{error}"))?;
            vec![Step::Server(carries)]
        }
        ("policy", [key, value]) => vec![Step::Policy((*key).to_owned(), (*value).to_owned())],
        ("down", []) => vec![Step::Down],
        ("restart", []) => vec![Step::Restart],
        ("show", _) => vec![Step::Show(names(rest)?)],
        _ => return Err(format!("{verb:?} is nothing that happens; docs/scenarios.md lists it")),
    })
}

/// `drain n1 "why" by=4:00`.
fn drains(line: &str, named: &str, options: &[&str]) -> Result<Vec<Step>, String> {
    let why = quoted(line).to_owned();
    let wanted = options.iter().find_map(|word| word.strip_prefix("empty-by="));
    let wanted_by = match wanted {
        Some(text) => Some(values::instant(text).ok_or("empty-by is followed by an instant")?),
        None => None,
    };
    let by = by(options)?;
    let nodes = nodes(&expand(named)?)?.into_iter();
    Ok(nodes.map(|node| Step::Drain { node, why: why.clone(), wanted_by, by }).collect())
}

fn closes(named: &str, why: &str) -> Result<Vec<Step>, String> {
    let nodes = nodes(&expand(named)?)?.into_iter();
    Ok(nodes.map(|node| Step::Close { node, why: why.to_owned() }).collect())
}

fn quoted(line: &str) -> &str {
    line.split('"').nth(1).unwrap_or("because")
}

/// Who does it: `by=7`, else root.
fn by(words: &[&str]) -> Result<UserId, String> {
    let given = words.iter().find_map(|word| word.strip_prefix("by="));
    given.map_or(Ok(UserId(0)), user)
}

/// `7` or `u7`.
fn user(text: &str) -> Result<UserId, String> {
    let number = text.strip_prefix('u').unwrap_or(text);
    number.parse().map(UserId).map_err(|_not_one| format!("{text:?} is no user: 7 or u7 is"))
}

fn names(words: &[&str]) -> Result<Vec<String>, String> {
    let named = words.iter().filter(|word| !word.contains('='));
    let all: Result<Vec<_>, _> = named.map(|word| expand(word)).collect();
    Ok(all?.into_iter().flatten().collect())
}

/// `a1..a3` is a1, a2 and a3.
fn expand(word: &str) -> Result<Vec<String>, String> {
    let Some((first, last)) = word.split_once("..") else { return Ok(vec![word.to_owned()]) };
    let digits = first.len() - first.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (stem, from) = first.split_at(digits);
    let wrong = || format!("{word:?}: a range such as a1..a3 is accepted");
    let to = last.strip_prefix(stem).ok_or_else(wrong)?;
    let from: u32 = from.parse().map_err(|_not_one| wrong())?;
    let to: u32 = to.parse().map_err(|_not_one| wrong())?;
    Ok((from..=to).map(|number| format!("{stem}{number}")).collect())
}

fn nodes(names: &[String]) -> Result<Vec<NodeName>, String> {
    names.iter().map(|name| name.parse().map_err(|error| format!("{error}"))).collect()
}

fn account_request(verb: &str, words: &[&str]) -> Result<AccountRequest, String> {
    let plain: Vec<&str> = words.iter().filter(|word| !word.contains('=')).copied().collect();
    let path = |text: &str| text.parse::<AccountPath>().map_err(|error| format!("{error}"));
    Ok(match (verb, plain.as_slice()) {
        ("account" | "set", [account, size, rest @ ..]) => AccountRequest::Set {
            account: path(account)?,
            size: values::size(size).ok_or("a size is 40% or 10GPUh")?,
            cut: if rest.contains(&"now") { Cut::Now } else { Cut::Gradual },
        },
        ("transfer", [from, to, amount, rest @ ..]) => AccountRequest::Transfer {
            from: path(from)?,
            to: path(to)?,
            amount: values::amount(amount).ok_or("an amount is 10GPUh")?,
            permanent: rest.contains(&"permanent"),
            key: None,
        },
        ("delete", [account]) => AccountRequest::Delete { account: path(account)? },
        ("role", [account, role, who]) => AccountRequest::SetRole {
            account: if *account == "root" { None } else { Some(path(account)?) },
            user: user(who)?,
            role: match *role {
                "reader" => Some(Role::Reader),
                "member" => Some(Role::Member),
                "manager" => Some(Role::Manager),
                "none" => None,
                _ => return Err("a role is reader, member, manager or none".to_owned()),
            },
        },
        _ => return Err(format!("{verb} is not followed by what it needs")),
    })
}
