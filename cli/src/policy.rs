//! `policy`: the rules of the cluster, in people's units. They are read, changed and given back as
//! a whole; what a value may be is the coordinator's question.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value, json};
use tidegate_model::{Span, Timestamp};
use tidegate_proto::v1;

use crate::amount::{GpuTime, part, percent};
use crate::connect::Api;
use crate::exit::{Exit, Failure};
use crate::jobs::broken;
use crate::show::table::pairs;
use crate::show::{out, time};
use crate::view::users::{Users, uid};
use tidegate_model::nearest;

/// Shows every rule.
///
/// # Errors
/// If the coordinator does not answer.
pub(crate) async fn show(api: &Api, as_json: bool) -> Result<(), Failure> {
    let Read { mut policy, version, set } = read(api).await?;
    let slots = slots(&mut policy);
    if as_json {
        let mut document = document(&slots);
        document.insert("version".to_owned(), json!(version));
        document.insert("set".to_owned(), json!(set));
        return out::json(&document);
    }
    let rules = pairs(slots.iter().map(|(key, slot)| (*key, slot.to_string())));
    let now = time::now();
    let set = match set {
        Some(Set { at_ms, by }) => {
            let (at, ago) = (time::rfc3339(Timestamp(at_ms)), time::ago(Timestamp(at_ms), now));
            let by = by.unwrap_or_else(|| "unknown".to_owned());
            format!("set by {by} at {at} ({ago}), record {version}")
        }
        None => "set by unknown: no record of it is kept".to_owned(),
    };
    out::say(&format!("{rules}\n\n{set}"))
}

/// Changes rules.
///
/// # Errors
/// If a key or a value is refused, it is not allowed, or the coordinator does not answer.
pub(crate) async fn set(api: &Api, given: &[String], as_json: bool) -> Result<(), Failure> {
    let Read { mut policy, version, set: _ } = read(api).await?;
    let mut told = Vec::new();
    once_each(given)?;
    for pair in given {
        told.push(change(&mut policy, pair)?);
    }
    let request = v1::SetPolicyRequest { policy: Some(policy.clone()), version: Some(version) };
    let reply = api.read(async |mut client| client.set_policy(request.clone()).await).await?;
    // It may be so by an earlier try whose answer was lost.
    let already = if reply.changed { None } else { read(api).await?.set };
    if as_json {
        let policy = document(&slots(&mut policy));
        let changed = reply.changed;
        return out::json(&json!({ "changed": changed, "set": already, "policy": policy }));
    }
    told.extend(already.map(|set| format!("already so, since {}", set.told())));
    out::say(&told.join("\n"))
}

/// The policy in force.
struct Read {
    policy: v1::Policy,
    /// The record that set it, or 0.
    version: u64,
    /// Null = no record of it is kept.
    set: Option<Set>,
}

/// When and by whom it was set.
#[derive(Debug, Serialize)]
struct Set {
    at_ms: u64,
    /// Null = a release that did not record it.
    by: Option<String>,
}

impl Set {
    fn told(&self) -> String {
        let at = Timestamp(self.at_ms);
        let by = self.by.as_deref().unwrap_or("unknown");
        format!("{} (by {by}, {})", time::rfc3339(at), time::ago(at, time::now()))
    }
}

async fn read(api: &Api) -> Result<Read, Failure> {
    let request = v1::GetPolicyRequest {};
    let reply = api.read(async |mut client| client.get_policy(request).await).await?;
    let configured = reply.by_configuration.then(|| "the coordinator's configuration".to_owned());
    let by = reply.by_uid.map(|uid| Users::default().name(uid)).or(configured);
    let (version, set) = (reply.version, reply.set_ms.map(|at_ms| Set { at_ms, by }));
    let policy = tidegate_proto::required(reply.policy, "GetPolicyReply.policy");
    let policy = policy.map_err(|error| broken(&error))?;
    if policy.sharing.is_none() {
        return Err(Failure::new(Exit::Broken, "the coordinator named no rules of sharing"));
    }
    Ok(Read { policy, version, set })
}

/// Of two values for one key neither is meant more than the other.
fn once_each(given: &[String]) -> Result<(), Failure> {
    let mut keys = BTreeMap::new();
    for pair in given {
        let Some((key, value)) = pair.split_once('=') else { continue };
        if let Some(before) = keys.insert(key, value) {
            return Err(Failure::refused(format!(
                "{key}: {before:?} and {value:?} were given; one value for each key is accepted"
            )));
        }
    }
    Ok(())
}

/// Puts one `KEY=VALUE` in, and says what became of it.
fn change(policy: &mut v1::Policy, pair: &str) -> Result<String, Failure> {
    let (key, text) = pair.split_once('=').ok_or_else(|| {
        Failure::refused(format!("{pair:?}: give KEY=VALUE; `tidegate policy show` lists the keys"))
    })?;
    let mut slots = slots(policy);
    let known: Vec<_> = slots.iter().map(|(key, _)| *key).collect();
    let Some((_, slot)) = slots.iter_mut().find(|(known, _)| *known == key) else {
        let meant = nearest(key, &known).map(|near| format!(" (did you mean {near:?}?)"));
        let meant = meant.unwrap_or_default();
        let keys = known.join(", ");
        return Err(Failure::refused(format!("unknown key {key:?}{meant}; the keys are {keys}")));
    };
    let before = slot.to_string();
    slot.set(text.trim()).map_err(|expected| {
        Failure::refused(format!("{key}: {text:?} was given; {expected} is accepted"))
    })?;
    let after = slot.to_string();
    Ok(if before == after {
        format!("{key} is {after} (it was so already)")
    } else {
        format!("{key} is {after}, and was {before}")
    })
}

/// One rule in its message, by what it measures.
enum Slot<'policy> {
    Span(&'policy mut u64),
    /// One that an older coordinator does not know.
    Newer(&'policy mut Option<u64>),
    Count(&'policy mut u32),
    /// A number of GPUs, or none.
    Above(&'policy mut Option<u32>),
    /// In millionths.
    Part(&'policy mut u32),
    Hours(&'policy mut Vec<u8>),
    Users(&'policy mut Vec<u32>),
    Kinds(&'policy mut Vec<v1::GpuRule>),
}

/// Every rule by its key, which is that of the configuration.
fn slots(policy: &mut v1::Policy) -> Vec<(&'static str, Slot<'_>)> {
    let v1::Policy {
        start_timeout_ms,
        restart_backoff_ms,
        restart_backoff_max_ms,
        steady_after_ms,
        keep_ended_ms,
        silent_after_ms,
        max_live_jobs,
        admins,
        sharing,
    } = policy;
    let mut slots = vec![
        ("start_timeout", Slot::Span(start_timeout_ms)),
        ("restart_backoff", Slot::Span(restart_backoff_ms)),
        ("restart_backoff_max", Slot::Span(restart_backoff_max_ms)),
        ("steady_after", Slot::Span(steady_after_ms)),
        ("keep_ended", Slot::Span(keep_ended_ms)),
        ("silent_after", Slot::Span(silent_after_ms)),
        ("max_live_jobs", Slot::Count(max_live_jobs)),
        ("admins", Slot::Users(admins)),
    ];
    slots.extend(sharing.as_mut().into_iter().flat_map(sharing_slots));
    slots
}

/// Taken apart field by field: a rule that is added is not forgotten here.
fn sharing_slots(sharing: &mut v1::Sharing) -> [(&'static str, Slot<'_>); 28] {
    let v1::Sharing {
        small_reserve,
        small_gpus,
        small_min_runtime_ms,
        small_gpu_minutes,
        small_floor,
        settle_ms,
        patience_ms,
        elder_gap_ms,
        slack,
        protected_cap,
        headroom,
        gang_cap,
        large_gang,
        large_min_runtime_ms,
        max_min_runtime_ms,
        free_grace_ms,
        leave_limit_ms,
        verify_limit_ms,
        max_reservations,
        look_ahead,
        spare_recent_ms,
        return_span_ms,
        pass_every_ms,
        gate_width,
        gate_patience_ms,
        no_progress_limit,
        require_rehearsal,
        gpu_types,
    } = sharing;
    [
        ("small_reserve", Slot::Part(small_reserve)),
        ("small_gpus", Slot::Count(small_gpus)),
        ("small_min_runtime", Slot::Span(small_min_runtime_ms)),
        ("small_gpu_minutes", Slot::Count(small_gpu_minutes)),
        ("small_floor", Slot::Hours(small_floor)),
        ("settle", Slot::Span(settle_ms)),
        ("patience", Slot::Span(patience_ms)),
        ("elder_gap", Slot::Span(elder_gap_ms)),
        ("slack", Slot::Part(slack)),
        ("protected_cap", Slot::Part(protected_cap)),
        ("headroom", Slot::Part(headroom)),
        ("gang_cap", Slot::Part(gang_cap)),
        ("large_gang", Slot::Part(large_gang)),
        ("large_min_runtime", Slot::Span(large_min_runtime_ms)),
        ("max_min_runtime", Slot::Span(max_min_runtime_ms)),
        ("free_grace", Slot::Span(free_grace_ms)),
        ("leave_limit", Slot::Newer(leave_limit_ms)),
        ("verify_limit", Slot::Span(verify_limit_ms)),
        ("max_reservations", Slot::Count(max_reservations)),
        ("look_ahead", Slot::Count(look_ahead)),
        ("spare_recent", Slot::Span(spare_recent_ms)),
        ("return_span", Slot::Span(return_span_ms)),
        ("pass_every", Slot::Span(pass_every_ms)),
        ("gate_width", Slot::Count(gate_width)),
        ("gate_patience", Slot::Newer(gate_patience_ms)),
        ("no_progress_limit", Slot::Count(no_progress_limit)),
        ("require_rehearsal", Slot::Above(require_rehearsal)),
        ("gpu_types", Slot::Kinds(gpu_types)),
    ]
}

fn span(text: &str) -> Result<u64, &'static str> {
    let span: Span = text.parse().ok().ok_or("a span of time like 90s or 24h")?;
    Ok(span.0)
}

impl Slot<'_> {
    /// Takes a value as people write it; else says what is accepted.
    fn set(&mut self, text: &str) -> Result<(), &'static str> {
        match self {
            Self::Span(ms) => **ms = span(text)?,
            Self::Newer(ms) => **ms = Some(span(text)?),
            Self::Count(count) => **count = text.parse().ok().ok_or("a whole number")?,
            Self::Above(gpus) => {
                **gpus = match text {
                    "off" => None,
                    number => Some(number.parse().ok().ok_or("a number of GPUs like 8, or off,")?),
                };
            }
            Self::Part(millionths) => {
                **millionths = part(text).ok_or("a percentage like 5% or 12.5%, up to 100%")?;
            }
            Self::Hours(bytes) => {
                let amount: GpuTime = text.parse().ok().ok_or("GPU-hours like 64h")?;
                **bytes = amount.on_wire();
            }
            Self::Users(uids) => {
                let named = text.split(',').filter(|user| !user.is_empty()).map(uid);
                let named: Result<_, _> = named.collect();
                **uids = named.ok().ok_or("users of this machine or uids, joined by commas,")?;
            }
            Self::Kinds(rules) => {
                let rules_given = text.split(',').filter(|rule| !rule.is_empty()).map(rule);
                let given: Option<_> = rules_given.collect();
                **rules =
                    given.ok_or("NAME:PRODUCT:WEIGHT like h100:H100:2000, joined by commas,")?;
            }
        }
        Ok(())
    }

    /// The exact value, and what its key ends with.
    fn exact(&self) -> (&'static str, Value) {
        match self {
            Self::Span(ms) => ("_ms", json!(**ms)),
            Self::Newer(ms) => ("_ms", json!(**ms)),
            Self::Count(count) => ("", json!(**count)),
            Self::Above(gpus) => ("", json!(**gpus)),
            Self::Part(millionths) => ("_millionths", json!(**millionths)),
            Self::Hours(bytes) => {
                let amount = GpuTime::read(bytes, "Sharing.small_floor").unwrap_or_default();
                ("_gpu_us", json!(amount))
            }
            Self::Users(uids) => ("", json!(**uids)),
            Self::Kinds(rules) => {
                let kind = |rule: &v1::GpuRule| json!({ "name": rule.name, "product": rule.product, "weight": rule.weight });
                ("", rules.iter().map(kind).collect())
            }
        }
    }
}

impl fmt::Display for Slot<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Span(ms) => Span(**ms).fmt(out),
            Self::Newer(ms) => Span(ms.unwrap_or_default()).fmt(out),
            Self::Count(count) => count.fmt(out),
            // Not off: above none is every job.
            Self::Above(Some(0)) => out.write_str("0 (every job with a min runtime)"),
            Self::Above(Some(gpus)) => gpus.fmt(out),
            Self::Above(None) => out.write_str("off"),
            Self::Part(millionths) => out.write_str(&percent(**millionths)),
            Self::Hours(bytes) => {
                let amount = GpuTime::read(bytes, "Sharing.small_floor").unwrap_or_default();
                write!(out, "{amount} GPU-h")
            }
            Self::Users(uids) => {
                let uids: Vec<_> = uids.iter().map(ToString::to_string).collect();
                out.write_str(&listed(&uids))
            }
            Self::Kinds(rules) => {
                let rule =
                    |rule: &v1::GpuRule| format!("{}:{}:{}", rule.name, rule.product, rule.weight);
                out.write_str(&listed(&rules.iter().map(rule).collect::<Vec<_>>()))
            }
        }
    }
}

fn listed(words: &[String]) -> String {
    if words.is_empty() { "-".to_owned() } else { words.join(",") }
}

fn rule(text: &str) -> Option<v1::GpuRule> {
    let (name, rest) = text.split_once(':')?;
    let (product, weight) = rest.rsplit_once(':')?;
    let weight = weight.parse().ok()?;
    Some(v1::GpuRule { name: name.to_owned(), product: product.to_owned(), weight })
}

fn document(slots: &[(&'static str, Slot<'_>)]) -> Map<String, Value> {
    let entry = |(key, slot): &(&str, Slot<'_>)| {
        let (unit, value) = slot.exact();
        (format!("{key}{unit}"), value)
    };
    slots.iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rehearsal_for_more_than_no_gpus_is_told_as_one_for_every_job() {
        let check = |text: &str, exact: Option<u32>, told: &str| {
            let mut gpus = Some(7);
            let mut slot = Slot::Above(&mut gpus);
            assert_eq!(slot.set(text), Ok(()));
            assert_eq!((slot.to_string().as_str(), slot.exact()), (told, ("", json!(exact))));
        };
        check("8", Some(8), "8");
        check("0", Some(0), "0 (every job with a min runtime)");
        check("off", None, "off");
    }
}
