//! What the errors of the client and its servers mean to whoever locks.

use zookeeper_client::{Error as ZkError, MultiWriteError};

use crate::error::{Error, ErrorKind, invalid};

/// An answer of the ensemble, or what came instead.
pub(super) type Answer<T> = std::result::Result<T, Trouble>;

/// What came instead of an answer.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// The node, or its parent, is not there.
    NoNode,
    /// The node is there already.
    Exists,
    /// The node has been changed meanwhile.
    Changed,
    /// The session is over, and all its nodes with it.
    Over,
    /// Anything else.
    Other(Error),
}

impl From<ZkError> for Trouble {
    fn from(error: ZkError) -> Trouble {
        Trouble::Other(match &error {
            ZkError::NoNode => return Trouble::NoNode,
            ZkError::NodeExists => return Trouble::Exists,
            ZkError::BadVersion => return Trouble::Changed,
            ZkError::SessionExpired | ZkError::SessionMoved | ZkError::ClientClosed => {
                return Trouble::Over;
            }
            ZkError::NoAuth => invalid(
                "the server does not allow us to touch this node (its ACL); check the user, the \
                 password and acl= of the URL",
            ),
            ZkError::AuthFailed => invalid("the server refuses the user or password"),
            ZkError::InvalidAcl => {
                invalid("the server knows no user of this session to make creator of a node")
            }
            ZkError::QuotaExceeded => {
                Error::new(ErrorKind::TooMany, "a quota of the ensemble is used up")
            }
            ZkError::Throttled => {
                Error::new(ErrorKind::Unreachable, "the server is overloaded and refuses requests")
            }
            ZkError::BadArguments(_) | ZkError::Unimplemented | ZkError::NotEmpty => {
                Error::new(ErrorKind::Unexpected, format!("the ensemble says: {error}"))
            }
            // Whatever broke the connection broke it after the request was sent.
            _ => Error::new(ErrorKind::Unknown, format!("no answer: {error}")),
        }
        .because(error))
    }
}

impl From<MultiWriteError> for Trouble {
    fn from(error: MultiWriteError) -> Trouble {
        ZkError::from(error).into()
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        Trouble::Other(error)
    }
}

impl From<Trouble> for Error {
    fn from(trouble: Trouble) -> Error {
        match trouble {
            Trouble::Other(error) => error,
            Trouble::Over => Error::new(ErrorKind::Unknown, "the session ended"),
            // Others delete and make the same nodes; asking again sorts it out.
            Trouble::NoNode | Trouble::Exists | Trouble::Changed => {
                Error::new(ErrorKind::Unknown, "the nodes changed under our hands")
            }
        }
    }
}

impl Trouble {
    /// Whether the ensemble has answered, as opposed to keeping silent.
    pub(super) fn is_definite(&self) -> bool {
        match self {
            Trouble::NoNode | Trouble::Exists | Trouble::Changed => true,
            Trouble::Over => false,
            Trouble::Other(error) => !error.is_silence(),
        }
    }
}
