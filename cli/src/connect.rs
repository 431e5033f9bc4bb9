//! The connection to the coordinator: which socket, how it is asked, and what a miss means. The
//! coordinator knows who asks from the socket itself; nothing here names a user.

use std::env;
use std::error::Error;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use hyper_util::rt::TokioIo;
use tidegate_proto::MAX_MESSAGE_BYTES;
use tidegate_proto::v1::tidegate_client::TidegateClient;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status};
use tower::service_fn;

use crate::exit::{Exit, Failure};
use crate::retry::{Answer, Miss, Patience, persist};
use crate::view::users::own_uid;

/// The variable that names the coordinator's socket. `TIDEGATE_SOCKET` is the one of a job.
pub(crate) const SOCKET_ENV: &str = "TIDEGATE_API";

pub(crate) type Client = TidegateClient<Channel>;

/// Where a coordinator may listen, in the order of trying.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sockets {
    /// At least one.
    paths: Vec<PathBuf>,
    /// By the person, who then answers for it.
    named: bool,
}

impl Sockets {
    /// The given socket, or that of the environment, or the usual places.
    pub(crate) fn find(given: Option<PathBuf>) -> Self {
        match given.or_else(|| env::var_os(SOCKET_ENV).map(PathBuf::from)) {
            Some(path) => Self { paths: vec![path], named: true },
            None => {
                let runtime_dir = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
                Self { paths: usual(runtime_dir), named: false }
            }
        }
    }

    async fn dial(&self) -> io::Result<UnixStream> {
        let path = self.choose();
        if !self.named && belongs_to_another(path) {
            let why = "its directory belongs to another user";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        UnixStream::connect(path).await
    }

    /// The first that exists; the last if none does.
    fn choose(&self) -> &Path {
        let there = self.paths.iter().find(|path| path.exists());
        there.or_else(|| self.paths.last()).map_or_else(|| Path::new(""), PathBuf::as_path)
    }

    /// Whether a coordinator may have listened at one of them and may come back.
    fn are_plausible(&self) -> bool {
        self.paths.iter().filter_map(|path| path.parent()).any(Path::is_dir)
    }

    /// The coordinator's socket, where that of an agent is named: they lie in `nodes` beside it.
    fn meant(&self) -> Option<PathBuf> {
        let nodes = self.choose().parent().filter(|dir| dir.ends_with("nodes"))?;
        Some(nodes.parent()?.join("api.sock"))
    }

    fn tried(&self) -> String {
        let chosen = self.choose();
        if chosen.exists() {
            return chosen.display().to_string();
        }
        let paths = self.paths.iter().map(|path| path.display().to_string());
        paths.collect::<Vec<_>>().join(" or ")
    }
}

fn usual(runtime_dir: Option<PathBuf>) -> Vec<PathBuf> {
    let mut paths: Vec<_> =
        runtime_dir.map(|dir| dir.join("tidegate/api.sock")).into_iter().collect();
    paths.push(PathBuf::from("/run/tidegate/api.sock"));
    paths.push(PathBuf::from(format!("/tmp/tidegate-{}/api.sock", own_uid())));
    paths
}

/// In /tmp anybody may make the directory that bears our number, and would be handed our jobs.
fn belongs_to_another(path: &Path) -> bool {
    let dir = path.parent().and_then(|dir| dir.symlink_metadata().ok());
    path.starts_with("/tmp") && dir.is_some_and(|dir| ![0, own_uid()].contains(&dir.uid()))
}

/// The coordinator, as a client sees it. Connects when first asked and again after a loss.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    client: Client,
    sockets: Sockets,
}

impl Api {
    /// Must be called within a runtime.
    pub(crate) fn new(sockets: Sockets) -> Self {
        let search = sockets.clone();
        let dial = service_fn(move |_uri| {
            let search = search.clone();
            async move { Ok::<_, io::Error>(TokioIo::new(search.dial().await?)) }
        });
        // The name is not resolved: `dial` connects to the socket.
        let channel =
            Endpoint::from_static("http://coordinator.invalid").connect_with_connector_lazy(dial);
        let client = Client::new(channel).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Self { client, sockets }
    }

    /// Asks until there is an answer or patience is at its end.
    ///
    /// # Errors
    /// Why there is none, with the exit code of its kind.
    pub(crate) async fn ask<T>(
        &self,
        patience: &Patience,
        request: impl AsyncFn(Client) -> Result<Response<T>, Status>,
    ) -> Result<Answer<T>, Failure> {
        persist(patience, async || {
            let late = || Status::deadline_exceeded("no answer in time");
            let reply = timeout(patience.deadline, request(self.client.clone())).await;
            let reply = reply.unwrap_or_else(|_elapsed| Err(late()));
            reply.map(Response::into_inner).map_err(|status| self.judged(&status, patience))
        })
        .await
    }

    /// As [`Api::ask`] with the patience of a read.
    ///
    /// # Errors
    /// As [`Api::ask`].
    pub(crate) async fn read<T>(
        &self,
        request: impl AsyncFn(Client) -> Result<Response<T>, Status>,
    ) -> Result<T, Failure> {
        Ok(self.ask(&Patience::of_reads(), request).await?.value)
    }

    fn judged(&self, status: &Status, patience: &Patience) -> Miss {
        if let Some(error) = dial_error(status) {
            return self.not_connected(error, patience);
        }
        let away = |meanwhile: &str, message: String| Miss::Away {
            meanwhile: meanwhile.to_owned(),
            failure: Failure::new(Exit::Unavailable, message),
        };
        let tried = self.sockets.tried();
        if status.code() == Code::DeadlineExceeded {
            let message = format!("the coordinator at {tried} does not answer");
            return away("the coordinator does not answer", message);
        }
        // A status that the coordinator sent has no source; one that tonic made of a lost
        // connection has, whatever its code.
        if status.source().is_some() {
            return away("coordinator is away", format!("the connection to {tried} was lost"));
        }
        if let (Code::Unimplemented, Some(meant)) = (status.code(), self.sockets.meant()) {
            let message = format!(
                "{tried} is the socket of a node's agent; name the coordinator's, {}, with --socket \
                 or {SOCKET_ENV}",
                meant.display()
            );
            return Miss::Final(Failure::refused(message));
        }
        if status.code() == Code::Unavailable {
            return Miss::Away { meanwhile: status.message().into(), failure: status.into() };
        }
        Miss::Final(status.into())
    }

    fn not_connected(&self, error: &io::Error, patience: &Patience) -> Miss {
        let tried = self.sockets.tried();
        if error.kind() == io::ErrorKind::PermissionDenied {
            let message = format!("{tried} may not be opened by you: {error}");
            return Miss::Final(Failure::new(Exit::NotAllowed, message));
        }
        let failure = Failure::new(
            Exit::Unavailable,
            format!(
                "no coordinator listens at {tried} ({error}); start tidegate-coordinator, try \
                 `tidegate demo`, or name its socket with --socket or {SOCKET_ENV}"
            ),
        );
        // A restart leaves the directory; without one there is nothing to wait for. A submit
        // waits all the same: it may be a service manager that made and removed the directory.
        if patience.total <= Patience::of_reads().total && !self.sockets.are_plausible() {
            return Miss::Final(failure);
        }
        Miss::Away { meanwhile: "coordinator is away".into(), failure }
    }
}

/// What the socket said, if it could not be connected to.
fn dial_error(status: &Status) -> Option<&io::Error> {
    let mut cause = status.source();
    // Of a request on a connection that broke the io error is another: its code says which.
    if status.code() != Code::Unavailable {
        return None;
    }
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error);
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_socket_that_exists_is_chosen_and_the_last_if_none_does() {
        let dir = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
        let sockets = Sockets { paths: vec![a.clone(), b.clone()], named: true };
        assert_eq!(sockets.choose(), b);
        assert_eq!(sockets.tried(), format!("{} or {}", a.display(), b.display()));
        std::fs::write(&a, "").unwrap();
        assert_eq!(sockets.choose(), a);
        assert_eq!(sockets.tried(), a.display().to_string());
    }

    #[test]
    fn the_usual_places_are_tried_from_the_users_own_to_the_systems() {
        let paths = usual(Some(PathBuf::from("/run/user/7")));
        let own = format!("/tmp/tidegate-{}/api.sock", own_uid());
        let expected = ["/run/user/7/tidegate/api.sock", "/run/tidegate/api.sock", own.as_str()];
        assert_eq!(paths, expected.map(PathBuf::from));
        assert_eq!(usual(None).len(), 2);
    }

    #[test]
    fn a_directory_in_tmp_that_another_user_made_is_not_trusted() {
        let dir = tempfile::tempdir_in("/tmp").unwrap();
        assert!(!belongs_to_another(&dir.path().join("api.sock")), "our own");
        assert!(!belongs_to_another(Path::new("/tmp/no-such-dir/api.sock")), "not there yet");
        assert!(!belongs_to_another(Path::new("/run/tidegate/api.sock")), "made by a service");
    }

    #[test]
    fn a_status_of_the_coordinator_is_told_in_its_words() {
        let at = |path: &str, status: &Status| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.unwrap();
            let _within = runtime.enter();
            let sockets = Sockets::find(Some(PathBuf::from(path)));
            Api::new(sockets).judged(status, &Patience::of_reads())
        };
        let api = |status: &Status| at("/nowhere/api.sock", status);
        let unknown = Status::unimplemented("");
        let told = "/run/nodes/n1.sock is the socket of a node's agent; name the coordinator's, \
                    /run/api.sock, with --socket or TIDEGATE_API";
        assert_eq!(at("/run/nodes/n1.sock", &unknown), Miss::Final(Failure::refused(told)));
        assert_eq!(api(&unknown), Miss::Final(Failure::from(&unknown)), "an older coordinator");
        let refused = api(&Status::invalid_argument("gpus: 0 asked"));
        assert_eq!(refused, Miss::Final(Failure::refused("gpus: 0 asked")));
        let closed = api(&Status::unavailable("the disk is full"));
        let failure = Failure::new(Exit::Unavailable, "the disk is full");
        assert_eq!(closed, Miss::Away { meanwhile: "the disk is full".into(), failure });
    }
}
