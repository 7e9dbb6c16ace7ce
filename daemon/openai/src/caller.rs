//! Who makes a request, as far as its API key says.

use actix_web::{HttpMessage, HttpRequest};

/// A request's key: its name, for the log, and whose it is.
pub(super) struct OfKey {
    pub(super) name: String,
    pub(super) owner: u128,
}

/// Whose key a request has; 0 where there are no keys.
pub(super) fn owner(request: &HttpRequest) -> u128 {
    request.extensions().get::<OfKey>().map_or(0, |key| key.owner)
}
