//! Unix sockets: one for the API, open to all local users, and one for each local node, open to
//! the coordinator's own user only. The kernel says who speaks.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll};

use tidegate_model::NodeName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tonic::transport::server::Connected;

/// The longest path the kernel takes for a Unix socket.
const MAX_PATH: usize = 107;

/// Binds a socket with the given permissions. One that a dead process left is replaced.
///
/// # Errors
/// If the path is too long, somebody still serves it, or it cannot be made.
pub async fn bind(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let length = path.as_os_str().len();
    if length > MAX_PATH {
        let why = format!(
            "{} has {length} bytes; a Unix socket's path has at most {MAX_PATH}: set a shorter \
             run_dir",
            path.display()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    if UnixStream::connect(path).await.is_ok() {
        let why = format!("another process serves {}; set another run_dir", path.display());
        return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

/// A connection of a node's agent: which node is known by the socket it came by.
#[derive(Debug)]
pub struct NodeStream {
    stream: UnixStream,
    node: NodeName,
}

impl NodeStream {
    /// A connection accepted on the node's socket.
    #[must_use]
    pub fn new(stream: UnixStream, node: NodeName) -> Self {
        Self { stream, node }
    }
}

impl Connected for NodeStream {
    type ConnectInfo = NodeName;

    fn connect_info(&self) -> NodeName {
        self.node.clone()
    }
}

impl AsyncRead for NodeStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for NodeStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
