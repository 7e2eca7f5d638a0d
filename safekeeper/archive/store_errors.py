"""Translates an object store's errors into those of this program.

obstore's errors come with a debugging appendix, the URL of the request (its query may contain a signature) and the
store's own XML. One line of that is kept: the code and the message, or the operating system's reason.
"""

import re
from collections.abc import Iterable, Mapping

from obstore.exceptions import NotSupportedError, PermissionDeniedError, UnauthenticatedError

from safekeeper.base.errors import ArchiveError, ArchiveRefused, ArchiveUnavailable, ObjectMissing

REASON_MAX_CHARACTERS = 200

_APPENDIX = "\n\nDebug source:"
_REQUEST = re.compile(r".*Error performing [A-Z]+ \S+ in .*? - ", re.DOTALL)
_PREAMBLE = re.compile(r"^(?:Generic \w+ error: |Object at location .*? (?:not found|already exists): )+")
_XML_CODE = re.compile(r"<Code>([^<]*)</Code>")
_XML_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")
_OS_MESSAGE = re.compile(r'message: "([^"]*)"')
_USERINFO = re.compile(r"://[^/\s@]*@")
_QUERY = re.compile(r"(://[^\s?]*)\?\S*")
# Hosts of a cloud's credentials endpoint: requested when no credentials are configured.
_METADATA_HOSTS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")

# Errors that an operator must correct, and how. S3's codes; obstore's classes cover those that other stores lack.
_REFUSALS = {
    "AccessDenied": "allow it there, or correct the credentials",
    "AccountProblem": "ask the provider",
    "AllAccessDisabled": "ask the provider",
    "ExpiredToken": "the credentials have expired: renew them",
    "InvalidAccessKeyId": "correct the credentials",
    "InvalidToken": "renew the credentials",
    "NoSuchBucket": "make the bucket, or correct its name in the URL",
    "ContainerNotFound": "make the container, or correct its name in the URL",
    "PermanentRedirect": "correct the region or the endpoint",
    "RequestTimeTooSkewed": "set the clock of this machine",
    "SignatureDoesNotMatch": "correct the credentials",
    "TokenRefreshRequired": "renew the credentials",
}
# As obstore and the operating system print them; obstore's own classes are missing for some requests.
_OTHER_REFUSALS = (
    "status code: 401",
    "status code: 403",
    "Permission denied",
    "Read-only file system",
    "Operation not permitted",
)


# S3's and its imitations' refusal of a put without a checksum, in a bucket with Object Lock.
_NEEDS_CHECKSUM = re.compile("content-md5|x-amz-checksum", re.IGNORECASE)


class ConditionsNotSupported(ArchiveUnavailable):
    """The store does not support a put that must not overwrite."""


def needs_checksum(error: BaseException) -> bool:
    """Return whether a store has refused a put because it has no checksum, as S3 does in a bucket with Object Lock."""
    code = _XML_CODE.search(str(error))
    return code is not None and bool(_NEEDS_CHECKSUM.search(str(error)))


def secrets_of(options: Mapping[str, str]) -> list[str]:
    """Return the values of a store's options that no message may contain."""
    values = [value for name, value in options.items() if "endpoint" not in name and "region" not in name]
    return [value for value in values if len(value) > 4]


def reason_of(error: BaseException, secrets: Iterable[str] = ()) -> str:
    """Return the reason, on one line of at most REASON_MAX_CHARACTERS, without URLs' secret parts.

    Args:
        secrets: values that are removed if the text quotes them.
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text, _, appendix = str(error).partition(_APPENDIX)
    code, message = _XML_CODE.search(text), _XML_MESSAGE.search(text)
    if code is not None:
        text = f"{code[1]}: {message[1]}" if message is not None else code[1]
    else:
        text = _PREAMBLE.sub("", _REQUEST.sub("", text))
        of_the_system = _OS_MESSAGE.findall(appendix)
        if "error sending request" in text or "error decoding response body" in text:
            text = (
                of_the_system[-1]
                if of_the_system
                else "no reply within the timeout"
                if "TimedOut" in appendix
                else text
            )
    text = _QUERY.sub(r"\1", _USERINFO.sub("://", " ".join(text.split())))
    for secret in secrets:
        text = text.replace(secret, "***")
    return text[:REASON_MAX_CHARACTERS] or type(error).__name__


def translated(error: Exception, action: str, secrets: Iterable[str] = ()) -> ArchiveError:
    """Return the error that stands for `error`, of obstore or the operating system, in this program.

    Args:
        action: the failed action, with URL and key.
    """
    reason = reason_of(error, secrets)
    text = str(error)
    code = next((code for code in _REFUSALS if f"<Code>{code}</Code>" in text), None)
    if any(host in text for host in _METADATA_HOSTS):
        return ArchiveUnavailable(
            f"could not {action}: no credentials are configured, and the metadata service returns none: {reason}"
        )
    if code is not None:
        return ArchiveRefused(f"could not {action}: {reason}: {_REFUSALS[code]}")
    if isinstance(error, UnauthenticatedError | PermissionDeniedError | PermissionError) or any(
        refusal in text for refusal in _OTHER_REFUSALS
    ):
        return ArchiveRefused(f"could not {action}: {reason}: allow it there, or correct or renew the credentials")
    if isinstance(error, FileNotFoundError):
        return ObjectMissing(f"could not {action}: the object does not exist")
    if isinstance(error, NotSupportedError) or "501 Not Implemented" in text or "NotImplemented" in text:
        return ConditionsNotSupported(f"could not {action}: {reason}")
    return ArchiveUnavailable(f"could not {action}: {reason}")
