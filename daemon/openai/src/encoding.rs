//! Texts of requests to token ids, and back. Long ones are tokenized beside the thread that serves everybody's streams, a few at a time, and no further
//! than they are of use.

use std::sync::Arc;

use actix_web::web;
use faser_engine::TokenId;
use faser_models::{Encoded, ModelError, Tokenizer};

use super::errors::ApiError;
use super::params::Kept;
use crate::pairs::Served;

/// Longer texts go to another thread.
const LONG_TEXT_BYTES: usize = 16 << 10;
/// And more token ids.
const MANY_IDS: usize = 4 << 10;

/// Token ids of a prompt.
///
/// # Errors
/// 400: it has more tokens than the context, which may be found out without counting them; or the tokenizer cannot express it.
pub(super) async fn prompt(
    served: &Arc<Served>,
    text: String,
    add_special: bool,
    kept: Kept,
) -> Result<Vec<TokenId>, ApiError> {
    if kept != Kept::All {
        // Its end is kept, however long it is.
        return all(served, text, add_special).await;
    }
    let most = served.max_context;
    let encoded =
        encoded(served, text, move |tokenizer, text| tokenizer.encode_within(text, add_special, most))
            .await?;
    match encoded {
        // With too many of them as well: whoever takes it says how many.
        Encoded::All(ids) => Ok(ids),
        Encoded::TooMany => {
            let message = format!(
                "this model's maximum context length is {most} tokens, those that are generated among them, and the prompt has more: shorten the prompt"
            );
            Err(ApiError::bad_request(message, Some("prompt"), "context_length_exceeded"))
        }
    }
}

/// Token ids of a text of any length.
///
/// # Errors
/// The tokenizer cannot express it.
pub(super) async fn all(
    served: &Arc<Served>,
    text: String,
    add_special: bool,
) -> Result<Vec<TokenId>, ApiError> {
    encoded(served, text, move |tokenizer, text| tokenizer.encode(text, add_special)).await
}

/// The first token ids of a text, for what need not be exact.
///
/// # Errors
/// The tokenizer cannot express it.
pub(super) async fn beginning(
    served: &Arc<Served>,
    text: String,
    most: usize,
) -> Result<Vec<TokenId>, ApiError> {
    encoded(served, text, move |tokenizer, text| tokenizer.encode_beginning(text, most)).await
}

/// The text of token ids.
///
/// # Errors
/// The thread that makes it panicked.
pub(super) async fn text(served: &Arc<Served>, ids: Vec<TokenId>) -> Result<String, ApiError> {
    aside(served, ids.len() > MANY_IDS, move |tokenizer| tokenizer.decode(&ids)).await
}

async fn encoded<T: Send + 'static>(
    served: &Arc<Served>,
    text: String,
    encode: impl FnOnce(&Tokenizer, &str) -> Result<T, ModelError> + Send + 'static,
) -> Result<T, ApiError> {
    let long = text.len() > LONG_TEXT_BYTES;
    Ok(aside(served, long, move |tokenizer| encode(tokenizer, &text)).await??)
}

/// Does work on another thread if it is long, and else here, behind everybody's streams.
async fn aside<T: Send + 'static>(
    served: &Arc<Served>,
    long: bool,
    work: impl FnOnce(&Tokenizer) -> T + Send + 'static,
) -> Result<T, ApiError> {
    if !long {
        // A request may have many short ones.
        tokio::task::yield_now().await;
        return Ok(work(&served.tokenizer));
    }
    let tokenizer = Arc::clone(&served.tokenizer);
    // None only if it were closed, which nobody does. The thread keeps the place: it works on when the client is gone.
    let place = Arc::clone(&served.encoding).acquire_owned().await.ok();
    let done = web::block(move || {
        let _place = place;
        work(&tokenizer)
    });
    done.await.map_err(|err| ApiError::internal(err.to_string(), "internal_error"))
}
