//! The page at `/` of the admin socket: three files put together, with nothing from elsewhere, and allowed nothing but to ask for events.

use actix_web::HttpResponse;
use actix_web::http::header;
use faser_openai::random;

const PAGE: &str = include_str!("index.html");
const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

/// The page. Its style and script run by a number that is another one in every answer; whatever else came to stand in it would not.
pub(super) fn answer() -> HttpResponse {
    let nonce = random::id();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HttpResponse::Ok()
        .insert_header((header::CONTENT_SECURITY_POLICY, policy))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((header::REFERRER_POLICY, "no-referrer"))
        .insert_header((header::CACHE_CONTROL, "no-store"))
        .content_type("text/html; charset=utf-8")
        .body(page(&nonce))
}

fn page(nonce: &str) -> String {
    PAGE.replace("NONCE", nonce).replace("/* style.css */\n", STYLE).replace("/* script.js */\n", SCRIPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_asks_nobody_else_for_anything() {
        let page = page("0123");
        assert!(page.contains(STYLE) && page.contains(SCRIPT), "a marker in index.html has gone");
        assert_eq!(page.matches("nonce=\"0123\"").count(), 2);
        assert!(!page.contains("NONCE"));
        // Names of XML's vocabularies are no addresses to be asked.
        let rest = page.replace("http://www.w3.org/2000/svg", "");
        for elsewhere in ["http:", "https:", "src=", "@import", "url("] {
            assert!(!rest.contains(elsewhere), "{elsewhere}");
        }
        // Neither does it write anything: no call that changes something is in it.
        assert!(!page.contains("fetch(") && !page.contains("innerHTML"));
    }

    #[test]
    fn every_answer_has_a_policy_with_a_number_of_its_own() {
        let policy = || {
            let answer = answer();
            let policy = answer.headers().get(header::CONTENT_SECURITY_POLICY).unwrap().clone();
            policy.to_str().unwrap().to_owned()
        };
        let (one, other) = (policy(), policy());
        assert!(one.starts_with("default-src 'none'") && !one.contains("unsafe"), "{one}");
        assert_ne!(one, other);
    }
}
