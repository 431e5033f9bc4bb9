//! What goes to one agent, in which order.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tidegate_proto::link::NodePlan;
use tidegate_proto::v1;
use tokio::sync::{mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, WatchStream};
use tonic::Status;

/// What is said to an agent beside its plans.
pub(super) type Beside = v1::to_agent::Message;

/// The direction to an agent: the welcome; then each plan that is news when the stream has room for
/// it, before anything that is said beside plans. An error of the other direction ends it, and the
/// engine does by dropping the slot of the plans.
///
/// That an agent is heard is not said before its first plan: a permit that lapsed on a silent node
/// has another rate since, and its renewal must not reach the node before that rate does.
#[derive(Debug)]
pub struct Outgoing {
    welcome: Option<v1::Welcome>,
    plans: WatchStream<Option<Arc<NodePlan>>>,
    beside: ReceiverStream<Beside>,
    errors: ReceiverStream<Status>,
    planned: bool,
    over: bool,
}

impl Outgoing {
    pub(super) fn new(
        welcome: v1::Welcome,
        plans: watch::Receiver<Option<Arc<NodePlan>>>,
        beside: mpsc::Receiver<Beside>,
        errors: mpsc::Receiver<Status>,
    ) -> Self {
        Self {
            welcome: Some(welcome),
            plans: WatchStream::from_changes(plans),
            beside: ReceiverStream::new(beside),
            errors: ReceiverStream::new(errors),
            planned: false,
            over: false,
        }
    }

    fn poll_plan(&mut self, context: &mut Context<'_>) -> Poll<Result<Beside, Status>> {
        loop {
            match Pin::new(&mut self.plans).poll_next(context) {
                Poll::Ready(Some(Some(plan))) => {
                    self.planned = true;
                    return Poll::Ready(Ok(Beside::Plan(NodePlan::clone(&plan).into())));
                }
                Poll::Ready(Some(None)) => {}
                Poll::Ready(None) => {
                    let why = "the node was removed, or linked anew: say hello again";
                    return Poll::Ready(Err(Status::unavailable(why)));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn poll_beside(&mut self, context: &mut Context<'_>) -> Poll<Beside> {
        loop {
            match Pin::new(&mut self.beside).poll_next(context) {
                // The agent asks again with its next heartbeat.
                Poll::Ready(Some(Beside::Renewed(_))) if !self.planned => {}
                Poll::Ready(Some(message)) => return Poll::Ready(message),
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}

impl Stream for Outgoing {
    type Item = Result<v1::ToAgent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        let next = if let Some(welcome) = self.welcome.take() {
            Poll::Ready(Ok(Beside::Welcome(welcome)))
        } else if let Poll::Ready(Some(error)) = Pin::new(&mut self.errors).poll_next(context) {
            Poll::Ready(Err(error))
        } else {
            match self.poll_plan(context) {
                Poll::Pending => self.poll_beside(context).map(Ok),
                plan @ Poll::Ready(_) => plan,
            }
        };
        next.map(|next| {
            self.over = next.is_err();
            Some(next.map(|message| v1::ToAgent { message: Some(message) }))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use tidegate_model::{ClusterId, Epoch, Generation};
    use tokio_stream::StreamExt;

    use super::*;

    fn plan(generation: u64) -> Option<Arc<NodePlan>> {
        Some(Arc::new(NodePlan {
            cluster: ClusterId(7),
            epoch: Epoch(1),
            generation: Generation(generation),
            tasks: BTreeMap::new(),
        }))
    }

    /// The next message in short, if there is one by now.
    async fn said(outgoing: &mut Outgoing) -> String {
        let next = std::future::poll_fn(|context| {
            Poll::Ready(match Pin::new(&mut *outgoing).poll_next(context) {
                Poll::Ready(next) => Some(next),
                Poll::Pending => None,
            })
        });
        match next.await {
            None => "nothing yet".to_owned(),
            Some(None) => "over".to_owned(),
            Some(Some(Err(status))) => status.message().to_owned(),
            Some(Some(Ok(v1::ToAgent { message }))) => match message.unwrap() {
                Beside::Welcome(_) => "welcome".to_owned(),
                Beside::Plan(plan) => format!("plan {}", plan.generation),
                Beside::Renewed(number) => format!("renewed {number}"),
                other @ (Beside::ReadLog(_) | Beside::OpenTerminal(_)) => format!("{other:?}"),
            },
        }
    }

    #[tokio::test]
    async fn what_is_renewed_is_never_said_before_a_plan_that_is_there() {
        let (slot, plans) = watch::channel(None);
        let (say, beside) = mpsc::channel(8);
        let (_complain, errors) = mpsc::channel(1);
        let mut outgoing = Outgoing::new(v1::Welcome::default(), plans, beside, errors);
        assert_eq!(said(&mut outgoing).await, "welcome");

        say.try_send(Beside::Renewed(1)).unwrap();
        assert_eq!(said(&mut outgoing).await, "nothing yet", "no plan was said to this session");
        slot.send_replace(plan(4));
        say.try_send(Beside::Renewed(2)).unwrap();
        slot.send_replace(plan(5));
        assert_eq!(said(&mut outgoing).await, "plan 5", "the newest is the whole");
        assert_eq!(said(&mut outgoing).await, "renewed 2");

        say.try_send(Beside::Renewed(3)).unwrap();
        slot.send_replace(plan(6));
        assert_eq!(said(&mut outgoing).await, "plan 6");
        assert_eq!(said(&mut outgoing).await, "renewed 3");
    }

    #[tokio::test]
    async fn an_error_of_the_other_direction_ends_it_and_so_does_the_engine() {
        let (slot, plans) = watch::channel(None);
        let (_say, beside) = mpsc::channel(8);
        let (complain, errors) = mpsc::channel(1);
        let mut outgoing = Outgoing::new(v1::Welcome::default(), plans, beside, errors);
        complain.try_send(Status::invalid_argument("said twice")).unwrap();
        assert_eq!(said(&mut outgoing).await, "welcome");
        assert_eq!(said(&mut outgoing).await, "said twice");
        assert_eq!(said(&mut outgoing).await, "over");

        let (_complain, errors) = mpsc::channel(1);
        let (_say, beside) = mpsc::channel(8);
        let plans = slot.subscribe();
        let mut outgoing = Outgoing::new(v1::Welcome::default(), plans, beside, errors);
        drop(slot);
        assert_eq!(said(&mut outgoing).await, "welcome");
        assert!(outgoing.next().await.is_some_and(|parted| parted.is_err()));
        assert!(outgoing.next().await.is_none());
    }
}
