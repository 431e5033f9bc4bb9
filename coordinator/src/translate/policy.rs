//! The policy as a message.

use scheduler_core::{Amount, GpuRule, Policy, Sharing, SmallLimit, Weight};
use tidegate_model::{GpuCount, Span, UserId};
use tidegate_proto::{WireError, amount, amount_bytes, parsed, v1 as wire};

pub(crate) fn policy_message(policy: &Policy) -> wire::Policy {
    wire::Policy {
        start_timeout_ms: policy.start_timeout.0,
        restart_backoff_ms: policy.restart_backoff.0,
        restart_backoff_max_ms: policy.restart_backoff_max.0,
        steady_after_ms: policy.steady_after.0,
        keep_ended_ms: policy.keep_ended.0,
        silent_after_ms: policy.silent_after.0,
        max_live_jobs: policy.max_live_jobs,
        admins: policy.admins.iter().map(|user| user.0).collect(),
        sharing: Some(sharing_message(&policy.sharing)),
    }
}

pub(crate) fn policy(message: wire::Policy) -> Result<Policy, WireError> {
    Ok(Policy {
        start_timeout: Span(message.start_timeout_ms),
        restart_backoff: Span(message.restart_backoff_ms),
        restart_backoff_max: Span(message.restart_backoff_max_ms),
        steady_after: Span(message.steady_after_ms),
        keep_ended: Span(message.keep_ended_ms),
        silent_after: Span(message.silent_after_ms),
        max_live_jobs: message.max_live_jobs,
        admins: message.admins.into_iter().map(UserId).collect(),
        // A policy of a release before sharing has none.
        sharing: message.sharing.map_or_else(|| Ok(Sharing::default()), sharing)?,
    })
}

fn sharing_message(sharing: &Sharing) -> wire::Sharing {
    let rule = |rule: &GpuRule| wire::GpuRule {
        name: rule.name.to_string(),
        product: rule.product.clone(),
        weight: rule.weight.0,
    };
    wire::Sharing {
        small_reserve: sharing.small_reserve,
        small_gpus: sharing.small.gpus.0,
        small_min_runtime_ms: sharing.small.min_runtime.0,
        small_gpu_minutes: sharing.small.gpu_minutes,
        small_floor: amount_bytes(sharing.small_floor.0),
        settle_ms: sharing.settle.0,
        patience_ms: sharing.patience.0,
        elder_gap_ms: sharing.elder_gap.0,
        slack: sharing.slack,
        protected_cap: sharing.protected_cap,
        headroom: sharing.headroom,
        gang_cap: sharing.gang_cap,
        large_gang: sharing.large_gang,
        large_min_runtime_ms: sharing.large_min_runtime.0,
        max_min_runtime_ms: sharing.max_min_runtime.0,
        free_grace_ms: sharing.free_grace.0,
        verify_limit_ms: sharing.verify_limit.0,
        max_reservations: sharing.max_reservations,
        look_ahead: sharing.look_ahead,
        spare_recent_ms: sharing.spare_recent.0,
        return_span_ms: sharing.return_span.0,
        pass_every_ms: sharing.pass_every.0,
        gate_width: sharing.gate_width,
        gate_patience_ms: Some(sharing.gate_patience.0),
        leave_limit_ms: Some(sharing.leave_limit.0),
        no_progress_limit: sharing.no_progress_limit,
        require_rehearsal: sharing.require_rehearsal.map(|gpus| gpus.0),
        gpu_types: sharing.gpu_types.iter().map(rule).collect(),
    }
}

fn sharing(message: wire::Sharing) -> Result<Sharing, WireError> {
    let rule = |rule: wire::GpuRule| -> Result<_, WireError> {
        let name = parsed(&rule.name, "GpuRule.name")?;
        Ok(GpuRule { name, product: rule.product, weight: Weight(rule.weight) })
    };
    let default = Sharing::default();
    Ok(Sharing {
        small_reserve: message.small_reserve,
        small: SmallLimit {
            gpus: GpuCount(message.small_gpus),
            min_runtime: Span(message.small_min_runtime_ms),
            gpu_minutes: message.small_gpu_minutes,
        },
        small_floor: Amount(amount(&message.small_floor, "Sharing.small_floor")?),
        settle: Span(message.settle_ms),
        patience: Span(message.patience_ms),
        elder_gap: Span(message.elder_gap_ms),
        slack: message.slack,
        protected_cap: message.protected_cap,
        headroom: message.headroom,
        gang_cap: message.gang_cap,
        large_gang: message.large_gang,
        large_min_runtime: Span(message.large_min_runtime_ms),
        max_min_runtime: Span(message.max_min_runtime_ms),
        free_grace: Span(message.free_grace_ms),
        verify_limit: Span(message.verify_limit_ms),
        max_reservations: message.max_reservations,
        look_ahead: message.look_ahead,
        spare_recent: Span(message.spare_recent_ms),
        return_span: Span(message.return_span_ms),
        pass_every: Span(message.pass_every_ms),
        gate_width: message.gate_width,
        // A policy of before has neither.
        gate_patience: message.gate_patience_ms.map_or(default.gate_patience, Span),
        leave_limit: message.leave_limit_ms.map_or(default.leave_limit, Span),
        no_progress_limit: message.no_progress_limit,
        require_rehearsal: message.require_rehearsal.map(GpuCount),
        gpu_types: message.gpu_types.into_iter().map(rule).collect::<Result<_, _>>()?,
    })
}
