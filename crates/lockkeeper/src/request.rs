//! What the handles of all primitives have in common: a name, options, and
//! the one way to ask for a grant.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tracing::Instrument;

use crate::clock::Moment;
use crate::driver::link::{Ask, Link, Message, Terms, Waiting};
use crate::engine::{Intent, Kind, Mode};
use crate::error::{Error, ErrorKind, Result};
use crate::hold::Hold;
use crate::keeper::Keeper;
use crate::name::LockName;
use crate::options::LockOptions;
use crate::token::ClaimId;

type Hook = Arc<dyn Fn(&Waiting) + Send + Sync>;

/// A name with options, on a keeper. A bad name or option is told at the
/// first call, so that making a handle needs no `?`.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) keeper: Keeper,
    pub(crate) name: Result<LockName>,
    terms: Result<Arc<Terms>>,
    wait: Option<Duration>,
    hook: Option<Hook>,
}

impl Request {
    pub(crate) fn new(keeper: &Keeper, name: impl AsRef<str>) -> Self {
        Request {
            keeper: keeper.clone(),
            name: LockName::new(name),
            terms: keeper.default_terms(),
            wait: None,
            hook: None,
        }
    }

    pub(crate) fn set_options(&mut self, options: &LockOptions) {
        self.terms = self.keeper.terms(options);
        self.wait = options.wait;
    }

    pub(crate) fn set_hook(&mut self, hook: impl Fn(&Waiting) + Send + Sync + 'static) {
        self.hook = Some(Arc::new(hook));
    }

    /// Refuses what the engine cannot do, before anything is sent.
    pub(crate) fn supports(&self, kind: Kind) -> Result<&LockName> {
        let name = self.name.as_ref().map_err(Clone::clone)?;
        let info = self.keeper.info();
        if info.kinds.contains(&kind) {
            return Ok(name);
        }
        let text = format!("{} cannot do a {kind} safely", info.engine);
        Err(Error::new(ErrorKind::Unsupported, text).about(name).on(&info.label))
    }

    /// When an acquisition that starts now has to end.
    pub(crate) fn deadline(&self) -> Moment {
        let now = self.keeper.link().clock.now();
        self.wait.map_or(Moment::NEVER, |wait| now + wait)
    }

    /// Asks, waiting until the deadline.
    pub(crate) async fn lock(&self, mode: Mode) -> Result<Hold> {
        self.lock_until(mode, self.deadline()).await
    }

    pub(crate) async fn lock_until(&self, mode: Mode, deadline: Moment) -> Result<Hold> {
        // No patience at all still means one honest question.
        let patient = deadline > self.keeper.link().clock.now();
        let intent = if patient { Intent::Queue } else { Intent::Try };
        let deadline = if patient { deadline } else { Moment::NEVER };
        match self.acquire(mode, intent, None, deadline).await? {
            Some(hold) => Ok(hold),
            None => {
                let error = Error::new(ErrorKind::TimedOut, "not free, and no time to wait");
                let name = self.name.as_ref().map_err(Clone::clone)?;
                Err(error.about(name).during("lock").on(&self.keeper.info().label))
            }
        }
    }

    /// Asks once; `None` if others hold or wait.
    pub(crate) async fn try_lock(&self, mode: Mode) -> Result<Option<Hold>> {
        self.acquire(mode, Intent::Try, None, Moment::NEVER).await
    }

    /// Asks for a read lock beside the write lock it steps down from.
    pub(crate) async fn step_down(&self, above: ClaimId) -> Result<Hold> {
        let hold = self.acquire(Mode::Read, Intent::Try, Some(above), Moment::NEVER).await?;
        hold.ok_or_else(|| Error::lost(crate::Cause::TakenOver).during("downgrade"))
    }

    async fn acquire(
        &self,
        mode: Mode,
        intent: Intent,
        under: Option<ClaimId>,
        deadline: Moment,
    ) -> Result<Option<Hold>> {
        let name = self.supports(mode.kind())?.clone();
        let terms = self.terms.clone()?;
        let span = tracing::debug_span!("lock", %name, ?mode);
        let link = self.keeper.link().clone();
        let (reply, answer) = oneshot::channel();
        let (waiting, told) = match &self.hook {
            Some(hook) => {
                let (sender, receiver) = watch::channel(None);
                (Some(sender), Some((hook.clone(), receiver)))
            }
            None => (None, None),
        };
        let number = link.number();
        let started = link.clock.now();
        // Posted before the first await: from here on, dropping this future
        // withdraws the wish.
        link.post(Message::Acquire(Box::new(Ask {
            number,
            name,
            mode,
            intent,
            under,
            terms,
            started,
            deadline,
            reply,
            waiting,
        })))?;
        let pending = Pending { link: &link, number, answered: false };
        pending.wait(answer, told).instrument(span).await
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} on {}", self.name, self.keeper.info().label)
    }
}

/// An acquisition under way, withdrawn when its caller goes away.
struct Pending<'a> {
    link: &'a Link,
    number: u64,
    answered: bool,
}

impl Pending<'_> {
    async fn wait(
        mut self,
        answer: oneshot::Receiver<Result<Option<Hold>>>,
        told: Option<(Hook, watch::Receiver<Option<Waiting>>)>,
    ) -> Result<Option<Hold>> {
        let mut answer = std::pin::pin!(answer);
        let received = match told {
            None => answer.await,
            Some((hook, mut news)) => loop {
                tokio::select! {
                    biased;
                    received = &mut answer => break received,
                    Ok(()) = news.changed() => {
                        let waiting = news.borrow_and_update().clone();
                        if let Some(waiting) = waiting {
                            hook(&waiting);
                        }
                    }
                }
            },
        };
        self.answered = true;
        received.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Unexpected, "the keeper ended; the log says why")
                .during("lock")
                .on(&self.link.info.label))
        })
    }
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let _ = self.link.post(Message::Withdraw { number: self.number });
        }
    }
}
