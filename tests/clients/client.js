// npm's `mqtt` for the matrix of clients: commands on standard input, what happens on standard output, a line each of
// fields "name=value" between tabs, the first a word. Payloads are in hexadecimal. See driven.py.
const fs = require("fs");
const mqtt = require("mqtt");
const clients = {};

function tell(word, client, told = {}) {
  const fields = Object.entries(told).map(([name, value]) => `${name}=${value ?? ""}`);
  process.stdout.write([word, `client=${client}`, ...fields].join("\t") + "\n");
}

function open(of) {
  const file = (name) => (of[name] ? fs.readFileSync(of[name]) : undefined);
  const version = Number(of.version);
  const client = mqtt.connect(of.url, {
    clientId: of.id,
    protocolVersion: version,
    clean: of.expiry === "0",
    reconnectPeriod: 100,
    ca: file("ca"),
    cert: file("certificate"),
    key: file("key"),
    username: of.user || undefined,
    password: of.password || undefined,
    will: of.will ? { topic: of.will, payload: Buffer.from(of.words), qos: 1 } : undefined,
    autoAssignTopicAlias: version === 5,
    properties:
      version === 5
        ? { sessionExpiryInterval: Number(of.expiry), topicAliasMaximum: Number(of.aliases) || undefined }
        : undefined,
  });
  clients[of.client] = client;
  client.on("connect", (packet) => tell("opened", of.client, { session: Number(packet.sessionPresent) }));
  client.on("error", (error) => {
    // A link that breaks is one as well; what becomes of a publication is told where it was published.
    if (!["EPIPE", "ECONNRESET"].includes(error.code)) tell("failed", of.client, { why: String(error) });
  });
  client.on("message", (topic, payload, { qos, retain, properties = {} }) => {
    const [user = ""] = Object.entries(properties.userProperties ?? {}).map(([name, value]) => `${name}:${value}`);
    const { responseTopic: response, correlationData: correlation } = properties;
    const told = { topic, qos, retain: Number(retain), user, response, correlation };
    tell("message", of.client, { ...told, payload: payload.toString("hex") });
  });
}

const userProperties = ({ user }) => (user ? Object.fromEntries([user.split(":")]) : undefined);

const commands = {
  open,
  subscribe(of) {
    const properties = of.user ? { userProperties: userProperties(of) } : undefined;
    clients[of.client].subscribe(of.topic, { qos: Number(of.qos), properties }, (error, granted) =>
      error ? tell("failed", of.client, { why: String(error) }) : tell("subscribed", of.client, granted[0]),
    );
  },
  publish(of) {
    const client = clients[of.client];
    const said = {
      userProperties: userProperties(of),
      responseTopic: of.response || undefined,
      correlationData: of.correlation ? Buffer.from(of.correlation) : undefined,
    };
    const properties = Object.values(said).some((each) => each !== undefined) ? said : undefined;
    const options = { qos: Number(of.qos), retain: of.retain === "1", properties };
    client.publish(of.topic, Buffer.from(of.payload, "hex"), options, (error) =>
      error ? tell("failed", of.client, { why: String(error) }) : tell("published", of.client),
    );
  },
  close(of) {
    clients[of.client].end(false, () => tell("closed", of.client));
  },
};

require("readline")
  .createInterface({ input: process.stdin })
  .on("line", (line) => {
    const [word, ...fields] = line.split("\t");
    const of = Object.fromEntries(fields.map((field) => [field.split("=", 1)[0], field.slice(field.indexOf("=") + 1)]));
    commands[word](of);
  })
  .on("close", () => process.exit(0));
