//! A login on the proxy's side: the access token as it is now, and its renewal in time.

use super::error::LoginError;
use super::store::{Origin, Secret};
use super::token_file::Tokens;
use super::token_refresher::{self, Ask, MARGIN};
use crate::http::RequestParts;
use crate::upstream::Upstream;
use ironcage_model::{HostRule, HttpRule, RequestPath};
use ironcage_plan::{Network, PlannedLogin};
use ironcage_sys::rustix::net::{SendFlags, send};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};
use tokio::time::sleep;

/// How often to poll for the refresher's answer, or for another request that asked it.
const PAUSE: Duration = Duration::from_millis(10);
/// How long the refresher may take.
const PATIENCE: Duration = Duration::from_secs(90);
/// How long a failure is believed, and how often a token is renewed because it was refused.
const AGAIN: Duration = Duration::from_secs(5);
const REFUSED_AGAIN: Duration = Duration::from_secs(60);

/// A login. Its secrets are among the others of the store.
pub(crate) struct Login {
    pub(crate) name: String,
    pub(crate) hosts: Vec<HostRule>,
    /// The only requests that get the token.
    requests: Vec<HttpRule>,
    refresher: OwnedFd,
    until: Cell<Option<u64>>,
    /// Whether the server has refused the token, and when it was last renewed for that.
    refused: Cell<bool>,
    renewed: Cell<Option<Instant>>,
    failed: RefCell<Option<(Instant, LoginError)>>,
    asking: Cell<bool>,
    serial: Cell<u32>,
}

/// The question is over, however it went.
struct RefreshInFlight<'a>(&'a Login);

impl Drop for RefreshInFlight<'_> {
    fn drop(&mut self) {
        self.0.asking.set(false);
    }
}

impl Login {
    /// Starts the refresher, and takes the tokens as they are. Returns the login's secrets too: the
    /// access token first.
    pub(super) fn start(
        planned: &PlannedLogin,
        outside: (&Network, &Rc<Upstream>),
    ) -> Result<(Login, Vec<Secret>), LoginError> {
        let (refresher, tokens) = token_refresher::start(planned, outside)?;
        let hosts = planned.rule.hosts.clone();
        let secret = |placeholder: &str, value: &str, places| {
            let name = format!("login of {}", planned.rule.name);
            Secret::new(name, placeholder.to_owned(), value, hosts.clone(), places)
        };
        let access = PlannedLogin::access_places();
        let mut secrets = vec![secret(&planned.access, &tokens.access, access)];
        if let (Some(placeholder), Some(account)) = (&planned.account, &tokens.account) {
            secrets.push(secret(placeholder, account, PlannedLogin::account_places()));
        }
        let login = Login {
            name: planned.rule.name.clone(),
            hosts,
            requests: planned.rule.requests.clone(),
            refresher,
            until: Cell::new(tokens.until),
            refused: Cell::new(false),
            renewed: Cell::new(None),
            failed: RefCell::default(),
            asking: Cell::new(false),
            serial: Cell::new(0),
        };
        Ok((login, secrets))
    }

    /// Whether a request to a host gets the token.
    pub(super) fn is_for(&self, (name, port): &Origin, parts: &RequestParts) -> bool {
        // What a server could read in two ways leads nowhere.
        let Ok(path) = RequestPath::read(&parts.target) else {
            return false;
        };
        let mut requests = self.requests.iter();
        requests.any(|rule| rule.is_about(name, *port) && rule.allows(&parts.method, &path))
    }

    fn holds(&self, margin: Duration) -> bool {
        let tokens = Tokens {
            access: String::new(),
            account: None,
            until: self.until.get(),
        };
        !self.refused.get() && tokens.hold_beyond(SystemTime::now() + margin)
    }

    /// The server has refused the token. It is renewed before the next request, but not as
    /// often as somebody likes.
    pub(crate) fn was_refused(&self) {
        let lately = |at: Instant| at.elapsed() < REFUSED_AGAIN;
        if !self.renewed.get().is_some_and(lately) {
            self.refused.set(true);
        }
    }

    /// Makes sure that the token holds.
    ///
    /// # Errors
    /// Where it does not, and cannot be renewed.
    pub(crate) async fn refresh(&self, access: &Secret) -> Result<(), LoginError> {
        loop {
            if self.holds(MARGIN) {
                return Ok(());
            }
            let lately =
                |(at, why): &(Instant, LoginError)| (at.elapsed() < AGAIN).then(|| why.clone());
            if let Some(why) = self.failed.borrow().as_ref().and_then(lately) {
                // Renewed in vain before its time: it is still good for this request.
                return if self.holds(Duration::ZERO) {
                    Ok(())
                } else {
                    Err(why)
                };
            }
            if self.asking.replace(true) {
                sleep(PAUSE).await;
                continue;
            }
            let _asking = RefreshInFlight(self);
            match self.ask().await {
                Ok(tokens) => {
                    access.renew(&tokens.access);
                    self.until.set(tokens.until);
                    self.refused.set(false);
                    self.renewed.set(Some(Instant::now()));
                    self.failed.replace(None);
                    // What it says of itself may be wrong; then the server refuses it.
                    return Ok(());
                }
                Err(why) => {
                    self.failed.replace(Some((Instant::now(), why)));
                }
            }
        }
    }

    async fn ask(&self) -> Result<Tokens, LoginError> {
        let gone = |_: io::Error| LoginError::RefresherEnded;
        let serial = self.serial.get().wrapping_add(1);
        self.serial.set(serial);
        let ask = Ask {
            serial,
            refused: self.refused.get(),
        };
        let bytes = serde_json::to_vec(&ask).map_err(|error| gone(error.into()))?;
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        send(&self.refresher, &bytes, flags).map_err(|error| gone(error.into()))?;
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            match token_refresher::hear(&self.refresher, false).map_err(gone)? {
                Some(answer) if answer.serial == serial => return answer.said,
                // To a question that nobody waits for any more.
                Some(_) => {}
                None => sleep(PAUSE).await,
            }
        }
        Err(LoginError::RefresherSilent)
    }
}
