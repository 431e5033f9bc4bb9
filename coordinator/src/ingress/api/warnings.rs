//! What is accepted, and seldom meant: told with the answer to a submit.

use scheduler_core::{Books, LongAsk};
use tidegate_model::{JobSpec, Span, UserId};
use tidegate_proto::v1;

use super::Api;

/// What is known of a user's runs changes slowly: a view of this age will do, and a submit is not
/// to wait for a newer one.
const RECENT: Span = Span::minutes(1);

/// Of a job as it asks.
pub(super) fn of(books: &Books, user: UserId, spec: &JobSpec) -> Vec<v1::Warning> {
    let long = LongAsk::of(books, user, spec).map(|ask| v1::Warning {
        told: ask.to_string(),
        numbers: [
            ("min_runtime_ms".to_owned(), ask.asked.0),
            ("own_p90_ms".to_owned(), ask.p90.0),
            ("own_runs".to_owned(), u64::try_from(ask.runs).unwrap_or(u64::MAX)),
        ]
        .into(),
    });
    long.into_iter().collect()
}

impl Api {
    /// Never in the way of a submit: without a view there is no warning.
    pub(super) async fn warnings(&self, user: UserId, spec: &JobSpec) -> Vec<v1::Warning> {
        if spec.min_runtime == Span::ZERO {
            return Vec::new();
        }
        let now = self.engine.now();
        let recent = self.engine.views.latest().filter(|view| now.since(view.at) < RECENT);
        let view = match recent {
            Some(view) => Some(view),
            None => self.view().await.ok(),
        };
        view.map(|view| of(view.core.books(), user, spec)).unwrap_or_default()
    }
}
