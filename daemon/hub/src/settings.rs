//! What the environment says: the variables of `huggingface_hub`, so that one machine has one cache and one token.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::HubError;

const ENDPOINT: &str = "https://huggingface.co";
/// As in `huggingface_hub`.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where the hub and its cache are, and what may be asked.
#[derive(Clone)]
pub struct Settings {
    /// The cache: `HF_HUB_CACHE`, or `hub` in `HF_HOME`, or in `~/.cache/huggingface`.
    pub cache: PathBuf,
    /// The hub's address, without a slash at its end: `HF_ENDPOINT`.
    pub endpoint: String,
    /// What proves who is asking: `HF_TOKEN`, or what the file `HF_TOKEN_PATH` has.
    pub(crate) token: Option<String>,
    /// Whether nothing may be asked: `HF_HUB_OFFLINE`.
    pub offline: bool,
    /// How long the hub may bring nothing: `HF_HUB_DOWNLOAD_TIMEOUT`, in seconds.
    pub patience: Duration,
}

/// A variable's value, if it is set.
type Variable<'v> = &'v dyn Fn(&str) -> Option<OsString>;

impl Settings {
    /// Reads the environment.
    ///
    /// # Errors
    /// A variable is no such thing, there is no place for a cache, or the file of the token cannot be read.
    pub fn from_environment() -> Result<Settings, HubError> {
        Settings::read(&|name| std::env::var_os(name))
    }

    fn read(variable: Variable<'_>) -> Result<Settings, HubError> {
        let set =
            |names: &[&str]| names.iter().find_map(|name| variable(name).filter(|value| !value.is_empty()));
        let flag = |names: &[&str]| {
            set(names).is_some_and(|value| {
                ["1", "ON", "YES", "TRUE"].iter().any(|word| value.eq_ignore_ascii_case(word))
            })
        };
        let home = || {
            let folder = set(&["HOME"]).map(PathBuf::from);
            let caches = set(&["XDG_CACHE_HOME"])
                .map(PathBuf::from)
                .or_else(|| folder.map(|home| home.join(".cache")));
            caches.map(|caches| caches.join("huggingface"))
        };
        let own = set(&["HF_HOME"]).map(PathBuf::from).or_else(home);
        let cache = set(&["HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"]).map(PathBuf::from);
        let cache = cache.or_else(|| own.as_ref().map(|own| own.join("hub"))).ok_or(HubError::NoCache)?;
        let cache = std::path::absolute(&cache).map_err(|source| HubError::file("find", &cache, source))?;
        let endpoint = set(&["HF_ENDPOINT"])
            .map_or_else(|| ENDPOINT.to_owned(), |value| value.to_string_lossy().into_owned());
        let endpoint = endpoint.trim().trim_end_matches('/').to_owned();
        if !["http://", "https://"]
            .iter()
            .any(|scheme| endpoint.len() > scheme.len() && endpoint.starts_with(scheme))
        {
            return Err(HubError::Variable {
                name: "HF_ENDPOINT",
                wanted: "an address such as https://huggingface.co",
            });
        }
        let patience = match set(&["HF_HUB_DOWNLOAD_TIMEOUT"]) {
            None => PATIENCE,
            Some(value) => {
                let seconds = value.to_str().and_then(|text| text.trim().parse().ok());
                let seconds = seconds.filter(|seconds| (1..=3600).contains(seconds));
                Duration::from_secs(seconds.ok_or(HubError::Variable {
                    name: "HF_HUB_DOWNLOAD_TIMEOUT",
                    wanted: "whole seconds from 1 to 3600",
                })?)
            }
        };
        let written = |value: OsString| {
            value.to_str().map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let token = set(&["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"]).and_then(written);
        let token = match (token, set(&["HF_TOKEN_PATH"])) {
            (Some(token), _) => Some(token),
            (None, _) if flag(&["HF_HUB_DISABLE_IMPLICIT_TOKEN"]) => None,
            (None, Some(named)) => token_in(&PathBuf::from(named), true)?,
            (None, None) => own.map_or(Ok(None), |own| token_in(&own.join("token"), false))?,
        };
        if token.as_ref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(HubError::Variable {
                name: "HF_TOKEN",
                wanted: "a token, in letters, digits and signs",
            });
        }
        let offline = flag(&["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]);
        Ok(Settings { cache, endpoint, token, offline, patience })
    }
}

/// The token in a file; one that nobody named may be missing, or not be ours to read.
fn token_in(file: &std::path::Path, is_named: bool) -> Result<Option<String>, HubError> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text.trim().to_owned()).filter(|token| !token.is_empty())),
        Err(source) if is_named => Err(HubError::file("read HF_TOKEN_PATH,", file, source)),
        Err(_) => Ok(None),
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Settings { cache, endpoint, token, offline, patience } = self;
        let token = token.as_ref().map(|_| "secret");
        f.debug_struct("Settings")
            .field("cache", cache)
            .field("endpoint", endpoint)
            .field("token", &token)
            .field("offline", offline)
            .field("patience", patience)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        let variables: Vec<(String, OsString)> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), OsString::from(value))).collect();
        let variable = move |name: &str| {
            variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
        Settings::read(&variable).map_err(|error| error.to_string())
    }

    #[test]
    fn variables_are_those_of_huggingface_hub() {
        let cache = |variables| read(variables).unwrap().cache;
        assert_eq!(cache(&[("HOME", "/u")]), PathBuf::from("/u/.cache/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/u"), ("XDG_CACHE_HOME", "/c")]), PathBuf::from("/c/huggingface/hub"));
        assert_eq!(cache(&[("HOME", "/u"), ("HF_HOME", "/h")]), PathBuf::from("/h/hub"));
        assert_eq!(cache(&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/m")]), PathBuf::from("/m"));
        assert_eq!(cache(&[("HUGGINGFACE_HUB_CACHE", "/m")]), PathBuf::from("/m"));
        assert!(read(&[]).unwrap_err().contains("HF_HOME"));
        let plain = read(&[("HF_HOME", "/h")]).unwrap();
        assert_eq!((plain.endpoint.as_str(), plain.offline, plain.token), (ENDPOINT, false, None));
        let mirror =
            read(&[("HF_HOME", "/h"), ("HF_ENDPOINT", "http://mirror:8080/"), ("HF_HUB_OFFLINE", "yes")])
                .unwrap();
        assert_eq!((mirror.endpoint.as_str(), mirror.offline), ("http://mirror:8080", true));
        for (name, value) in
            [("HF_ENDPOINT", "mirror"), ("HF_HUB_DOWNLOAD_TIMEOUT", "soon"), ("HF_TOKEN", "a b")]
        {
            let refusal = read(&[("HF_HOME", "/h"), (name, value)]).unwrap_err();
            assert!(refusal.starts_with(&format!("{name} must be ")), "{refusal}");
        }
    }

    #[test]
    fn a_token_is_in_a_variable_or_in_a_file_and_never_shown() {
        let folder = std::env::temp_dir().join(format!("faser-hub-token-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("token"), "hf_of_the_file\n").unwrap();
        let home = ("HF_HOME", folder.to_str().unwrap());
        let settings = read(&[home]).unwrap();
        assert_eq!(settings.token.as_deref(), Some("hf_of_the_file"));
        assert!(!format!("{settings:?}").contains("hf_of"));
        assert_eq!(read(&[home, ("HF_TOKEN", " hf_own ")]).unwrap().token.as_deref(), Some("hf_own"));
        assert_eq!(read(&[home, ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]).unwrap().token, None);
        let gone = read(&[home, ("HF_TOKEN_PATH", "/nowhere/token")]).unwrap_err();
        assert!(gone.contains("HF_TOKEN_PATH") && gone.contains("/nowhere/token"), "{gone}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
