//! `GET /v1/events`: snapshots as server-sent events, as long as somebody reads them.

use actix_web::http::header;
use actix_web::{HttpResponse, web};
use faser_actors::Seen;
use futures_util::stream;

use super::Admin;
use super::api::Watch;
use crate::http::errors::ApiError;

/// One event now, and one after every interval. A reader that is slower gets fewer.
///
/// # Errors
/// 404: there is no such pair.
pub(super) fn stream(admin: web::Data<Admin>, watch: Watch) -> Result<HttpResponse, ApiError> {
    if let Some(pairs) = admin.app.loaded() {
        pairs.named(watch.pair.as_deref())?;
    }
    let begin = (admin, watch.timeline.then(Vec::<Seen>::new), false);
    let Watch { every, pair, .. } = watch;
    let events = stream::unfold(begin, move |(admin, mut seen, begun)| {
        let pair = pair.clone();
        async move {
            if begun {
                actix_web::rt::time::sleep(every).await;
            }
            let event = admin.snapshot(pair.as_deref(), seen.as_mut()).await.and_then(|snapshot| {
                serde_json::to_string(&snapshot)
                    .map(|data| web::Bytes::from(format!("event: status\ndata: {data}\n\n")))
                    .map_err(|err| ApiError::internal(err.to_string(), "internal_error"))
            });
            Some((event, (admin, seen, true)))
        }
    });
    Ok(HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "text/event-stream"))
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .streaming(events))
}
