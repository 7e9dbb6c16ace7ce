//! The pairs that are served, most often one: which of them a request means, and what is done to all of them.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde::Deserialize;

use crate::app::Served;
use crate::http::errors::ApiError;

/// One pair or several, in the order of the config. Clones are handles on the same ones.
#[derive(Clone)]
pub struct Pairs(Arc<[Arc<Served>]>);

impl Pairs {
    /// These.
    ///
    /// # Panics
    /// There are none: every config has one.
    pub fn new(all: Vec<Arc<Served>>) -> Pairs {
        assert!(!all.is_empty(), "a config has at least one pair");
        Pairs(all.into())
    }

    /// The first, which requests get that name none.
    pub fn first(&self) -> &Arc<Served> {
        &self.0[0]
    }

    /// All, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Served>> {
        self.0.iter()
    }

    /// Whether there is more than one.
    pub fn several(&self) -> bool {
        self.0.len() > 1
    }

    /// The pair of this number.
    pub fn get(&self, number: usize) -> Option<&Arc<Served>> {
        self.0.get(number)
    }

    /// The pair of this name, or the first.
    ///
    /// # Errors
    /// 404: there is none of this name.
    pub fn named(&self, name: Option<&str>) -> Result<&Arc<Served>, ApiError> {
        self.place(name).map(|(_, served)| served)
    }

    /// [`Pairs::named`] with the number of the pair.
    ///
    /// # Errors
    /// 404: there is none of this name.
    pub fn place(&self, name: Option<&str>) -> Result<(usize, &Arc<Served>), ApiError> {
        let Some(name) = name else { return Ok((0, self.first())) };
        let found = self.iter().enumerate().find(|(_, served)| served.names().find(name).is_some());
        found.ok_or_else(|| ApiError::unknown_model(name, self.names()))
    }

    /// The pair that the JSON of a request names as `model`, or the first: also of a body that cannot be read, for whoever reads it whole
    /// says what is wrong with it.
    ///
    /// # Errors
    /// 404: there is none of this name.
    pub fn of_body(&self, body: &[u8]) -> Result<&Arc<Served>, ApiError> {
        #[derive(Deserialize)]
        struct Named {
            model: Option<String>,
        }
        if !self.several() {
            return Ok(self.first());
        }
        let model = serde_json::from_slice::<Named>(body).ok().and_then(|body| body.model);
        self.named(model.as_deref())
    }

    /// The pair that a query names as `model`, or the first.
    ///
    /// # Errors
    /// 404: there is none of this name.
    pub fn of_query(&self, query: &str) -> Result<&Arc<Served>, ApiError> {
        self.named(model_of(query).as_deref())
    }

    /// All their names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().flat_map(|served| served.names().all())
    }

    /// Streams that have not ended.
    pub fn active(&self) -> usize {
        self.iter().map(|served| served.service.active()).sum()
    }

    /// Each has a replica that serves.
    pub fn ready(&self) -> bool {
        self.iter().all(|served| served.service.ready())
    }

    /// What their devices do, on one line; of several only those that do not serve, unless all do.
    pub fn status(&self) -> String {
        let troubled: Vec<&Arc<Served>> = self.iter().filter(|served| !served.service.ready()).collect();
        match troubled.as_slice() {
            _ if !self.several() => self.first().service.status(),
            [] => "serving".to_owned(),
            troubled => {
                let words = |served: &&Arc<Served>| format!("{}: {}", served.name, served.service.status());
                troubled.iter().map(words).collect::<Vec<_>>().join("; ")
            }
        }
    }

    /// Brings all metrics that follow from views up to date.
    pub fn publish_metrics(&self) {
        self.iter().for_each(|served| served.service.publish_metrics());
    }

    /// Comes back when the dispatchers of all have answered; `false` if one has stopped.
    pub async fn heartbeat(&self) -> bool {
        for served in self.iter() {
            if !served.service.heartbeat().await {
                return false;
            }
        }
        true
    }

    /// Waits, at most for `wait`, until there are no requests; says how many are left.
    pub async fn idle(&self, wait: Duration) -> usize {
        join_all(self.iter().map(|served| served.service.idle(wait))).await.into_iter().sum()
    }

    /// Takes nothing new from now on, and waits as [`Pairs::idle`].
    pub async fn drain(&self, timeout: Duration) -> usize {
        join_all(self.iter().map(|served| served.service.drain(timeout))).await.into_iter().sum()
    }

    /// Ends all their threads.
    pub async fn stop(&self) {
        join_all(self.iter().map(|served| served.service.clone().stop())).await;
    }
}

/// What a query says of `model`.
pub fn model_of(query: &str) -> Option<String> {
    let fields = actix_web::web::Query::<Vec<(String, String)>>::from_query(query).ok()?;
    fields.into_inner().into_iter().find_map(|(name, value)| (name == "model").then_some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_a_model() {
        assert_eq!(model_of("replica=1&model=Qwen%2FQwen3"), Some("Qwen/Qwen3".to_owned()));
        assert_eq!((model_of("seconds=1"), model_of("")), (None, None));
    }
}
