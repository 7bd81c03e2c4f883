// What can be drawn of payloads: numbers over time, and places.

const FIELDS_MAX = 40;
const PLACES_MAX = 500;

function parsedPayload(message) {
  if (message.parsed === undefined) {
    message.parsed = null;
    try {
      const found = JSON.parse(message.payload);
      if (typeof found === "object" && found !== null) message.parsed = found;
    } catch { /* no JSON */ }
  }
  return message.parsed;
}

function* walk(value, name, depth) {
  if (typeof value === "number" && Number.isFinite(value)) yield [name, value];
  else if (value && typeof value === "object" && !Array.isArray(value) && depth < 4) {
    for (const [key, inner] of Object.entries(value)) yield* walk(inner, name ? `${name}.${key}` : key, depth + 1);
  }
}

// Field -> [[seconds, number], ...], in the order of time. A payload that is a number is the field "payload".
export function numbers(messages) {
  const fields = new Map();
  for (const message of messages) {
    const parsed = parsedPayload(message);
    const plain = parsed === null && message.payload?.trim() ? Number(message.payload) : NaN;
    const found = parsed === null ? (Number.isFinite(plain) ? [["payload", plain]] : []) : walk(parsed, "", 0);
    for (const [name, value] of found) {
      if (!fields.has(name) && fields.size >= FIELDS_MAX) continue;
      if (!fields.has(name)) fields.set(name, []);
      fields.get(name).push([message.time, value]);
    }
  }
  return fields;
}

const LATITUDE = /^(lat|latitude)$/i;
const LONGITUDE = /^(lon|lng|long|longitude)$/i;

function placeOf(value, depth) {
  if (!value || typeof value !== "object" || depth > 3) return null;
  const number = (pattern) => {
    const key = Object.keys(value).find((each) => pattern.test(each));
    const told = key === undefined ? null : value[key];
    // Number() makes 0 of null, of "" and of an empty list.
    const found = typeof told === "number" || (typeof told === "string" && told.trim()) ? Number(told) : NaN;
    return Number.isFinite(found) ? found : null;
  };
  const latitude = number(LATITUDE);
  const longitude = number(LONGITUDE);
  if (latitude !== null && longitude !== null && Math.abs(latitude) <= 90 && Math.abs(longitude) <= 180) return [latitude, longitude];
  for (const inner of Object.values(value)) {
    const found = placeOf(inner, depth + 1);
    if (found) return found;
  }
  return null;
}

// Topic -> [latitude, longitude], the last of each.
export function coordinates(messages) {
  const places = new Map();
  for (const message of messages) {
    const place = placeOf(parsedPayload(message), 0);
    if (!place) continue;
    places.delete(message.topic);
    places.set(message.topic, place);
    if (places.size > PLACES_MAX) places.delete(places.keys().next().value);
  }
  return places;
}
