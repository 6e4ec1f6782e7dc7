//! The fence: the place where a token is checked.

use crate::engine::{Cell, CellOp, Kind};
use crate::error::{Error, ErrorKind, Result};
use crate::request::Request;
use crate::semaphore::unexpected;
use crate::token::Token;

/// Remembers the highest token a resource has seen and refuses lower ones.
///
/// For resources that cannot check tokens themselves: ask the fence right
/// before the write. A resource that *can* check (a conditional update, an
/// object store's precondition) closes the last gap between the check and the
/// write, and is better.
///
/// # Examples
/// ```
/// use lockkeeper::{ErrorKind, Keeper, Token};
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let keeper = Keeper::connect("memory:").await?;
/// let report = keeper.fence("s3://bucket/report");
/// report.check(Token::new(18)).await?;
/// let error = report.check(Token::new(17)).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Stale);
/// # Ok::<(), lockkeeper::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Fence {
    request: Request,
}

impl Fence {
    pub(crate) fn new(request: Request) -> Self {
        Fence { request }
    }

    /// Accepts a token as high as the highest seen; remembers it.
    ///
    /// # Errors
    /// [`ErrorKind::Stale`] for a lower one: its holder was replaced.
    ///
    /// # Cancel safety
    /// May have taken effect; repeating it is harmless.
    pub async fn check(&self, token: Token) -> Result<()> {
        match self.cell(CellOp::Fence { token }).await? {
            Cell::Fence { highest } if highest <= token => Ok(()),
            Cell::Fence { highest } => {
                let text = format!("token {token} is stale: {highest} has been seen");
                let error = Error::new(ErrorKind::Stale, text).during("fence");
                Err(error.about(self.request.supports(Kind::Fence)?))
            }
            other => Err(unexpected(&other)),
        }
    }

    /// The highest token seen, if any was.
    ///
    /// # Errors
    /// What the engine says.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn highest(&self) -> Result<Option<Token>> {
        match self.cell(CellOp::Look { kind: Kind::Fence, watch: false }).await? {
            Cell::Fence { highest } => Ok(Some(highest)),
            Cell::Absent => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    async fn cell(&self, op: CellOp) -> Result<Cell> {
        let name = self.request.supports(Kind::Fence)?.clone();
        self.request.keeper.cell("fence", name, op).await
    }
}
