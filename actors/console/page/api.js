// What the console is asked, and what it says.

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function answered(request) {
  let response;
  try {
    response = await request;
  } catch {
    throw new Refused(0, "The console cannot be reached. Is the cluster running?");
  }
  const told = await response.json().catch(() => ({}));
  if (!response.ok) throw new Refused(response.status, told.error ?? `It said ${response.status}.`);
  return told;
}

export function path(name, parameters = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    if (value !== "" && value !== null && value !== undefined) query.append(key, value);
  }
  const text = query.toString();
  return `/api/v1/${name}${text ? `?${text}` : ""}`;
}

export function get(name, parameters) {
  return answered(fetch(path(name, parameters), { headers: { Accept: "application/json" } }));
}

// `signal`: by which it is called off.
export function post(name, body, parameters, signal) {
  return answered(fetch(path(name, parameters), {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body ?? {}),
  }));
}
