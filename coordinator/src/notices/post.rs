//! One post over HTTP: no redirects, no answer read, no place reached that the list does not mean.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, USER_AGENT};
use hyper::{Request, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::rt::TokioExecutor;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use tower::Service;

use super::allow::{AllowList, is_near, means_this_host};
use super::queue::Posted;

/// A post is answered within this, or tried again.
pub const ANSWERED_WITHIN: Duration = Duration::from_secs(10);

/// Why nothing can be posted at all.
#[derive(Debug, thiserror::Error)]
#[error(
    "notices.allow names https addresses, and this host has no certificates to know them by ({0}); \
     install ca-certificates or set SSL_CERT_FILE"
)]
pub struct NoCertificates(String);

/// Posts to what a list allows.
#[derive(Debug, Clone)]
pub struct Poster {
    client: Client<HttpsConnector<HttpConnector<FarOnly>>, Full<Bytes>>,
    allow: AllowList,
    answered_within: Duration,
}

impl Poster {
    /// For the addresses of the list.
    ///
    /// # Errors
    /// If certificates are needed and there are none.
    pub fn new(allow: AllowList, answered_within: Duration) -> Result<Self, NoCertificates> {
        let mut roots = RootCertStore::empty();
        if allow.has_https() {
            let found = rustls_native_certs::load_native_certs();
            let (added, _ignored) = roots.add_parsable_certificates(found.certs);
            if added == 0 {
                let why = found.errors.first().map(ToString::to_string);
                return Err(NoCertificates(why.unwrap_or_else(|| "none is found".to_owned())));
            }
        }
        let config = ClientConfig::builder_with_provider(ring::default_provider().into())
            .with_safe_default_protocol_versions()
            .map_err(|error| NoCertificates(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut http = HttpConnector::new_with_resolver(FarOnly);
        http.enforce_http(false);
        http.set_connect_timeout(Some(answered_within));
        let https = HttpsConnectorBuilder::new().with_tls_config(config);
        let https = https.https_or_http().enable_http1().wrap_connector(http);
        // Posts to one place are rare: no connection is kept for the next.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(https);
        Ok(Self { client, allow, answered_within })
    }

    /// Posts one document, and says what became of it.
    pub async fn post(&self, url: &str, document: String) -> Posted {
        // The list may have changed since the job was submitted.
        if let Err(why) = self.allow.check(url) {
            return Posted::Refused(why);
        }
        let request = Request::post(url)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("tidegate/", env!("CARGO_PKG_VERSION")))
            .body(Full::from(document));
        let request = match request {
            Ok(request) => request,
            Err(error) => return Posted::Refused(error.to_string()),
        };
        match tokio::time::timeout(self.answered_within, self.client.request(request)).await {
            Ok(Ok(reply)) => judged(reply.status()),
            Ok(Err(error)) => {
                let mut why: &dyn std::error::Error = &error;
                while let Some(below) = why.source() {
                    why = below;
                }
                Posted::Again(why.to_string())
            }
            Err(_elapsed) => {
                Posted::Again(format!("no answer within {} s", self.answered_within.as_secs()))
            }
        }
    }
}

/// What a status means to whoever posts.
fn judged(status: StatusCode) -> Posted {
    let later = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS];
    if status.is_success() {
        Posted::Taken
    } else if status.is_server_error() || later.contains(&status) {
        Posted::Again(format!("it answers {status}"))
    } else if status.is_redirection() {
        Posted::Refused(format!("it answers {status}, and redirects are not followed"))
    } else {
        Posted::Refused(format!("it answers {status}"))
    }
}

/// Looks names up, and leaves out the addresses of this host and its link: whoever answers for a name
/// must not choose a service that trusts this host.
#[derive(Debug, Clone, Copy)]
struct FarOnly;

impl Service<Name> for FarOnly {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let is_meant = |at: &SocketAddr| means_this_host(name.as_str()) || !is_near(at.ip());
            let far: Vec<_> = found.filter(is_meant).collect();
            if far.is_empty() {
                let why = format!(
                    "{} leads to the coordinator's own host or link, which notices.allow must name \
                     by address",
                    name.as_str()
                );
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
            Ok(far.into_iter())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_succeed_later_is_tried_again_and_what_never_will_is_given_up() {
        for taken in [200, 201, 204] {
            assert_eq!(judged(StatusCode::from_u16(taken).unwrap()), Posted::Taken);
        }
        for again in [408, 425, 429, 500, 502, 503] {
            let posted = judged(StatusCode::from_u16(again).unwrap());
            assert!(matches!(posted, Posted::Again(_)), "{again}: {posted:?}");
        }
        for refused in [301, 302, 307, 400, 403, 404, 410] {
            let posted = judged(StatusCode::from_u16(refused).unwrap());
            assert!(matches!(posted, Posted::Refused(_)), "{refused}: {posted:?}");
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_to_this_host_is_not_followed_unless_it_says_so_itself() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // This host's own name leads to it, by /etc/hosts or its resolver.
        let own = nix::unistd::gethostname().unwrap().to_string_lossy().to_lowercase();
        let looked_up = tokio::net::lookup_host((own.as_str(), port)).await;
        let near = looked_up.is_ok_and(|mut found| found.all(|at| is_near(at.ip())));
        let mut names = vec!["ip6-localhost".to_owned()];
        names.extend(near.then_some(own));
        for name in names {
            let url = format!("http://{name}:{port}/");
            let allow = AllowList::parse(std::slice::from_ref(&url)).unwrap();
            let poster = Poster::new(allow, Duration::from_secs(5)).unwrap();
            let posted = poster.post(&url, String::new()).await;
            assert!(matches!(&posted, Posted::Again(why) if !why.is_empty()), "{name}: {posted:?}");
        }
        let nobody = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await;
        assert!(nobody.is_err(), "nobody may have connected");
        let url = format!("http://localhost:{port}/");
        let allow = AllowList::parse(std::slice::from_ref(&url)).unwrap();
        let poster = Poster::new(allow, Duration::from_millis(200)).unwrap();
        let (accepted, _) = tokio::join!(listener.accept(), poster.post(&url, String::new()));
        assert!(accepted.is_ok(), "localhost says so itself");
    }
}
