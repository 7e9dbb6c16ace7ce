//! What browsers may ask. A tunnel to the socket (`ssh -L 8080:/run/faser/admin.sock`) is open to every page that its user looks at, with
//! the rights of that user: so a page changes nothing, and one from elsewhere reads nothing.

use std::net::IpAddr;

use actix_web::HttpRequest;
use actix_web::http::Method;
use faser_openai::errors::ApiError;

use super::admin_errors::forbidden;

/// Refuses what a page of a stranger could have had a browser ask.
pub(super) fn check(request: &HttpRequest) -> Result<(), ApiError> {
    let header = |name: &str| request.headers().get(name).map(|value| value.to_str().unwrap_or("?"));
    if let Some(host) = header("host")
        && !is_local(host)
    {
        return Err(forbidden("the Host of a call must be a name without dots, or a loopback address"));
    }
    let by_page = header("origin").is_some() || header("sec-fetch-site").is_some();
    if by_page && request.method() != Method::GET {
        return Err(forbidden("pages may look, but change nothing: use `faser ctl`"));
    }
    if header("sec-fetch-site").is_some_and(|site| !matches!(site, "same-origin" | "none")) {
        return Err(forbidden("pages of other sites are told nothing"));
    }
    Ok(())
}

/// Whether a Host header cannot be that of a stranger's page, whose name leads to this machine (DNS rebinding): the name has no dot, or it is
/// a loopback address.
fn is_local(host: &str) -> bool {
    let plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    is_loopback(host) || name(host).is_some_and(|name| name.parse::<IpAddr>().is_err() && plain(name))
}

/// Whether a Host header names this machine, seen from itself.
pub(crate) fn is_loopback(host: &str) -> bool {
    let Some(name) = name(host) else { return false };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A Host header without its port.
fn name(host: &str) -> Option<&str> {
    match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map(|(address, _)| address),
        None => host.split(':').next(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix_web::test::TestRequest;

    fn ask(method: Method, headers: &[(&'static str, &'static str)]) -> bool {
        let mut request = TestRequest::default().method(method);
        for header in headers {
            request = request.insert_header(*header);
        }
        check(&request.to_http_request()).is_ok()
    }

    #[test]
    fn hosts_of_strangers_are_told_from_our_own() {
        for host in
            ["faser", "localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:80", "[::1]", "127.9.9.9"]
        {
            assert!(is_local(host), "{host}");
        }
        for host in [
            "example.com",
            "example.com:80",
            "localhost.example.com",
            "10.0.0.1",
            "[2001:db8::1]:80",
            "[::1",
            "0.0.0.0",
            "a b",
        ] {
            assert!(!is_local(host) && !is_loopback(host), "{host}");
        }
        assert!(is_loopback("localhost:1") && is_loopback("[::1]") && !is_loopback("faser"));
    }

    #[test]
    fn pages_look_at_what_is_theirs_and_change_nothing() {
        let own = ("sec-fetch-site", "same-origin");
        assert!(ask(Method::GET, &[("host", "localhost:8080"), own]));
        assert!(ask(Method::GET, &[("host", "localhost:8080"), ("sec-fetch-site", "none")]));
        assert!(ask(Method::POST, &[("host", "faser")]), "no browser");
        assert!(!ask(Method::POST, &[("host", "localhost:8080"), own]));
        assert!(!ask(Method::POST, &[("host", "localhost:8080"), ("origin", "http://example.com")]));
        assert!(!ask(Method::GET, &[("host", "localhost:8080"), ("sec-fetch-site", "cross-site")]));
        assert!(!ask(Method::GET, &[("host", "example.com")]));
    }
}
