/** What the service says of an error. `code` is for programs, `hint` for people. */
export class IroncageError extends Error {
  readonly code: string;
  readonly hint: string | undefined;
  readonly status: number | undefined;

  constructor(message: string, code = "error", more: { hint?: string | undefined; status?: number | undefined; cause?: unknown } = {}) {
    super(message, more.cause === undefined ? undefined : { cause: more.cause });
    this.name = new.target.name;
    this.code = code;
    this.hint = more.hint;
    this.status = more.status;
  }
}

/** The cage does not exist, or has ended. */
export class SandboxNotFoundError extends IroncageError {}
/** The cage did not start. */
export class StartError extends IroncageError {}
/** The API key is missing, wrong, or lacks the scope. */
export class AuthenticationError extends IroncageError {}
/** The policy denied it. */
export class DeniedError extends IroncageError {}
/** An argument that no cage can carry out. */
export class InvalidArgumentError extends IroncageError {}
/** The service does not offer it. */
export class UnsupportedError extends IroncageError {}

/** Too many requests; `retryAfter` has the seconds to wait, if the service named them. */
export class RateLimitError extends IroncageError {
  retryAfter: number | undefined;
}

/** A command ran into its timeout, and was killed with its process group. */
export class CommandTimeoutError extends IroncageError {
  stdout = "";
  stderr = "";
}

/** A file operation failed: `code` is not_found, permission_denied, is_a_directory and so on. */
export class FileError extends IroncageError {
  path = "";
}

const FILE_CODES = new Set([
  "not_found",
  "permission_denied",
  "is_a_directory",
  "not_a_directory",
  "already_exists",
  "not_empty",
  "no_space",
]);

/** The error in an answer. `path` is set for file operations, whose `not_found` is the file's. */
export function errorOf(status: number, headers: Headers, body: string, path?: string): IroncageError {
  let code = "service_error";
  let message = `the service answered with status ${status}`;
  let hint: string | undefined;
  try {
    const detail = JSON.parse(body).error;
    if (typeof detail?.code === "string" && typeof detail?.message === "string") {
      ({ code, message } = detail);
      hint = typeof detail.hint === "string" ? detail.hint : undefined;
    }
  } catch {
    // A proxy's page, say: the status is all there is.
  }
  const more = { hint, status };
  if (path !== undefined && FILE_CODES.has(code)) {
    const error = new FileError(message, code, more);
    error.path = path;
    return error;
  }
  switch (code) {
    case "not_found":
    case "cage_ended":
      return new SandboxNotFoundError(message, code, more);
    case "start_failed":
      return new StartError(message, code, more);
    case "unauthorized":
    case "forbidden":
      return new AuthenticationError(message, code, more);
    case "denied":
      return new DeniedError(message, code, more);
    case "not_offered":
      return new UnsupportedError(message, code, more);
    case "limit_reached": {
      const error = new RateLimitError(message, code, more);
      const after = headers.get("retry-after");
      error.retryAfter = after !== null && /^\d+$/.test(after) ? Number(after) : undefined;
      return error;
    }
    default:
      return new IroncageError(message, code, more);
  }
}
