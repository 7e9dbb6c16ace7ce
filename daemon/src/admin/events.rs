//! `GET /v1/events`: snapshots as server-sent events, as long as somebody reads them.

use actix_web::http::header;
use actix_web::{HttpResponse, web};
use faser_actors::Seen;
use futures_util::stream;

use super::Admin;
use super::api::Watch;
use crate::http::errors::ApiError;

/// One event now, and one after every interval. A reader that is slower gets fewer.
pub(super) fn stream(admin: web::Data<Admin>, watch: Watch) -> HttpResponse {
    let begin = (admin, watch.timeline.then(Vec::<Seen>::new), false);
    let events = stream::unfold(begin, move |(admin, mut seen, begun)| async move {
        if begun {
            actix_web::rt::time::sleep(watch.every).await;
        }
        let snapshot = admin.snapshot(seen.as_mut()).await;
        let event = serde_json::to_string(&snapshot)
            .map(|data| web::Bytes::from(format!("event: status\ndata: {data}\n\n")))
            .map_err(|err| ApiError::internal(err.to_string(), "internal_error"));
        Some((event, (admin, seen, true)))
    });
    HttpResponse::Ok()
        .insert_header((header::CONTENT_TYPE, "text/event-stream"))
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        .streaming(events)
}
