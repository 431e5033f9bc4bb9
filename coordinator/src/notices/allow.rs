//! Where notices may be sent. A user names the address, and the coordinator's host reaches places
//! that the user may not: so only what its operator has listed is reached, and what the list names
//! by a host name does not lead back to this host or to its link.

use std::net::IpAddr;

use hyper::Uri;

/// Beginnings of web addresses that are accepted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowList {
    /// As they were given, and read.
    entries: Vec<(String, Place)>,
}

/// An address, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    is_https: bool,
    /// In small letters; an IPv6 address without its brackets.
    host: String,
    port: u16,
    path: String,
}

/// What an entry of the list looks like.
const FORM: &str = "a form like https://hooks.slack.com/services/";

impl AllowList {
    /// Reads the entries of the configuration.
    ///
    /// # Errors
    /// The first that is none, and what is accepted.
    pub fn parse(entries: &[String]) -> Result<Self, String> {
        let read = |entry: &String| {
            let place = Place::parse(entry).filter(|_| !entry.contains('?'));
            let place = place.ok_or_else(|| {
                format!("{entry:?} is no beginning of a web address: expected {FORM}")
            })?;
            Ok::<_, String>((entry.clone(), place))
        };
        let entries: Vec<_> = entries.iter().map(read).collect::<Result<_, _>>()?;
        for (index, (entry, place)) in entries.iter().enumerate() {
            if let Some((first, _)) = entries.iter().take(index).find(|(_, one)| one == place) {
                return Err(format!(
                    "{entry:?} is the same place as {first:?} before it: each place is listed once"
                ));
            }
        }
        Ok(Self { entries })
    }

    /// The entries, as they were given.
    #[must_use]
    pub fn entries(&self) -> Vec<&str> {
        self.entries.iter().map(|(entry, _)| entry.as_str()).collect()
    }

    /// Whether nothing is accepted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether one of them is reached over TLS.
    pub(super) fn has_https(&self) -> bool {
        self.entries.iter().any(|(_, place)| place.is_https)
    }

    /// Whether notices may go there.
    ///
    /// # Errors
    /// What is accepted, in one sentence.
    pub fn check(&self, url: &str) -> Result<(), String> {
        if self.is_empty() {
            return Err(
                "this cluster sends notices nowhere; `tidegate notices --follow` tells you \
                        of your jobs all the same"
                    .to_owned(),
            );
        }
        let given = Place::parse(url);
        let is_below = |place: &Place| given.as_ref().is_some_and(|given| given.is_below(place));
        if self.entries.iter().any(|(_, place)| is_below(place)) {
            return Ok(());
        }
        let entries = self.entries().join(" or ");
        Err(format!("not allowed here; accepted is what begins with {entries}"))
    }
}

impl Place {
    fn parse(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let is_https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority()?;
        // Names before an @ look like hosts to people, and dots climb out of the path.
        let path = uri.path();
        let climbs = |part: &str| {
            matches!(part.replace("%2e", ".").replace("%2E", ".").as_str(), "." | "..")
        };
        let hidden = path.contains('\\') || path.to_ascii_lowercase().contains("%2f");
        if authority.as_str().contains('@') || hidden || path.split('/').any(climbs) {
            return None;
        }
        let host = authority.host().trim_matches(['[', ']']).to_ascii_lowercase();
        let port = match authority.as_str().rsplit_once(':') {
            Some((_, port)) if !port.contains(']') => port.parse().ok()?,
            Some(_) | None => {
                if is_https {
                    443
                } else {
                    80
                }
            }
        };
        (!host.is_empty()).then(|| Self { is_https, host, port, path: path.to_owned() })
    }

    /// Part by part: `/a` is not the beginning of `/ab`.
    fn is_below(&self, above: &Self) -> bool {
        let rest = self.path.strip_prefix(&above.path);
        let whole =
            |rest: &str| rest.is_empty() || rest.starts_with('/') || above.path.ends_with('/');
        (self.is_https, &self.host, self.port) == (above.is_https, &above.host, above.port)
            && rest.is_some_and(whole)
    }
}

/// An address as others than its owner may see it: without what is behind the host, which is often
/// a secret.
pub(crate) fn shown(url: &str) -> String {
    match url.split_once("://").map(|(scheme, rest)| (scheme, rest.split('/').next())) {
        Some((scheme, Some(host))) => format!("{scheme}://{host}/..."),
        Some((_, None)) | None => "...".to_owned(),
    }
}

/// Whether a name says by itself that it leads to this host: then the list says so too.
pub(super) fn means_this_host(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost")
}

/// Whether an address leads to this host, or to its link only.
pub(super) fn is_near(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            v4.is_loopback()
                || v4.is_link_local()
                || v4.octets()[0] == 0
                || v4.is_multicast()
                || v4.is_broadcast()
        }
        IpAddr::V6(v6) => {
            v6.is_loopback()
                || v6.is_unicast_link_local()
                || v6.is_unspecified()
                || v6.is_multicast()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str]) -> AllowList {
        let entries: Vec<_> = entries.iter().map(ToString::to_string).collect();
        AllowList::parse(&entries).unwrap()
    }

    fn check(entry: &str, url: &str, expected: bool) {
        assert_eq!(list(&[entry]).check(url).is_ok(), expected, "{entry}: {url}");
    }

    #[test]
    fn what_begins_as_the_list_says_is_accepted_and_what_only_looks_so_is_not() {
        let slack = "https://hooks.slack.com/services/";
        check(slack, "https://hooks.slack.com/services/T0/B1/x?y=1", true);
        check(slack, "https://HOOKS.slack.com:443/services/T0", true);
        check("https://hooks.slack.com", "https://hooks.slack.com/any", true);
        check("https://a.example/x", "https://a.example/x", true);
        check("https://a.example/x", "https://a.example/x/y", true);
        check("http://[::1]:8080/", "http://[::1]:8080/a", true);
        for url in [
            "http://hooks.slack.com/services/T0",
            "https://hooks.slack.com:8443/services/T0",
            "https://hooks.slack.com/other",
            "https://hooks.slack.com.evil.example/services/T0",
            "https://hooks.slack.com@evil.example/services/T0",
            "https://hooks.slack.com/services/../other",
            "https://hooks.slack.com/services/%2e%2E/other",
            "https://hooks.slack.com/services/..%2fother",
            "https://hooks.slack.com\\@evil.example/services/T0",
            "https://evil.example/?https://hooks.slack.com/services/",
            "ftp://hooks.slack.com/services/T0",
            "/services/T0",
            "",
        ] {
            check(slack, url, false);
        }
        check("https://a.example/x", "https://a.example/xy", false);
    }

    #[test]
    fn a_refusal_shows_the_list_and_an_empty_one_says_what_there_is_instead() {
        let told = list(&["https://a.example/x", "https://b.example/"]).check("https://c.example/");
        let expected = "not allowed here; accepted is what begins with https://a.example/x or https://b.example/";
        assert_eq!(told, Err(expected.to_owned()));
        let told = AllowList::default().check("https://c.example/").unwrap_err();
        assert!(told.contains("`tidegate notices --follow`"), "{told}");
        let twice = ["https://a.example/x".to_owned(), "https://A.example:443/x".to_owned()];
        assert_eq!(
            AllowList::parse(&twice).unwrap_err(),
            "\"https://A.example:443/x\" is the same place as \"https://a.example/x\" before it: \
             each place is listed once"
        );
        for entry in ["", "a.example", "https://", "ftp://a", "https://u@a/", "https://a/?q"] {
            assert!(AllowList::parse(&[entry.to_owned()]).is_err(), "{entry}");
        }
    }

    #[test]
    fn addresses_of_this_host_and_its_link_are_near_in_every_notation() {
        for near in [
            "127.0.0.1",
            "127.8.9.1",
            "169.254.169.254",
            "0.0.0.0",
            "::1",
            "::",
            "fe80::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "224.0.0.1",
            "ff02::1",
        ] {
            assert!(is_near(near.parse().unwrap()), "{near}");
        }
        for far in ["10.0.0.1", "192.168.1.1", "8.8.8.8", "2001:db8::1", "fd00::1"] {
            assert!(!is_near(far.parse().unwrap()), "{far}");
        }
    }

    #[test]
    fn an_address_is_shown_without_its_secret() {
        assert_eq!(shown("https://hooks.slack.com/T0/B1"), "https://hooks.slack.com/...");
        assert_eq!(shown("nonsense"), "...");
    }
}
