/* paho C for the matrix of clients: commands on standard input, what happens on standard output, a line each of fields
   "name=value" between tabs, the first a word. Payloads are in hexadecimal. See driven.py. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <MQTTAsync.h>

#define FIELDS 20
#define CLIENTS 4096

struct client {
    char *name;
    MQTTAsync handle;
    int version;
};

static struct client clients[CLIENTS];
static int client_count;
static char *fields[FIELDS];
static int field_count;
static pthread_mutex_t telling = PTHREAD_MUTEX_INITIALIZER;

/* The value of a field of the command; "" where it has none. */
static char *field(const char *name)
{
    size_t length = strlen(name);
    for (int i = 0; i < field_count; i++)
        if (!strncmp(fields[i], name, length) && fields[i][length] == '=')
            return fields[i] + length + 1;
    return "";
}

static int number(const char *name) { return atoi(field(name)); }

static void tell(const char *word, struct client *client, const char *name, const char *value)
{
    pthread_mutex_lock(&telling);
    printf("%s\tclient=%s\t%s=%s\n", word, client->name, name, value ? value : "");
    fflush(stdout);
    pthread_mutex_unlock(&telling);
}

static void failed(void *context, MQTTAsync_failureData *why) { tell("failed", context, "why", why ? why->message : ""); }

static void failed5(void *context, MQTTAsync_failureData5 *why)
{
    tell("failed", context, "why", why->message ? why->message : MQTTReasonCode_toString(why->reasonCode));
}

static void opened(void *context, MQTTAsync_successData *how)
{
    tell("opened", context, "session", how->alt.connect.sessionPresent ? "1" : "0");
}

static void opened5(void *context, MQTTAsync_successData5 *how)
{
    tell("opened", context, "session", how->alt.connect.sessionPresent ? "1" : "0");
}

static void subscribed(void *context, MQTTAsync_successData *how)
{
    char qos[4];
    snprintf(qos, sizeof qos, "%d", how->alt.qos & 0xff);
    tell("subscribed", context, "qos", qos);
}

static void subscribed5(void *context, MQTTAsync_successData5 *how)
{
    char qos[4];
    snprintf(qos, sizeof qos, "%d", how->reasonCode & 0xff);
    tell("subscribed", context, "qos", qos);
}

static void published(void *context, MQTTAsync_successData *how) { (void)how; tell("published", context, "", ""); }
static void published5(void *context, MQTTAsync_successData5 *how) { (void)how; tell("published", context, "", ""); }
static void closed(void *context, MQTTAsync_successData *how) { (void)how; tell("closed", context, "", ""); }
static void closed5(void *context, MQTTAsync_successData5 *how) { (void)how; tell("closed", context, "", ""); }

/* A property's text. */
static void print_text(MQTTProperties *properties, enum MQTTPropertyCodes code, const char *name)
{
    MQTTProperty *found = MQTTProperties_getProperty(properties, code);
    printf("\t%s=", name);
    if (!found)
        return;
    printf("%.*s", found->value.data.len, found->value.data.data);
    if (code == MQTTPROPERTY_CODE_USER_PROPERTY)
        printf(":%.*s", found->value.value.len, found->value.value.data);
}

static int arrived(void *context, char *topic, int length, MQTTAsync_message *message)
{
    struct client *client = context;
    pthread_mutex_lock(&telling);
    printf("message\tclient=%s\ttopic=%.*s\tqos=%d\tretain=%d", client->name, length ? length : (int)strlen(topic), topic,
           message->qos, message->retained);
    if (client->version == 5) {
        print_text(&message->properties, MQTTPROPERTY_CODE_USER_PROPERTY, "user");
        print_text(&message->properties, MQTTPROPERTY_CODE_RESPONSE_TOPIC, "response");
        print_text(&message->properties, MQTTPROPERTY_CODE_CORRELATION_DATA, "correlation");
    }
    printf("\tpayload=");
    for (int i = 0; i < message->payloadlen; i++)
        printf("%02x", ((unsigned char *)message->payload)[i]);
    printf("\n");
    fflush(stdout);
    pthread_mutex_unlock(&telling);
    MQTTAsync_freeMessage(&message);
    MQTTAsync_free(topic);
    return 1;
}

static void add_number(MQTTProperties *properties, enum MQTTPropertyCodes code, int value)
{
    MQTTProperty property = {.identifier = code};
    if (code == MQTTPROPERTY_CODE_SESSION_EXPIRY_INTERVAL)
        property.value.integer4 = (unsigned)value;
    else
        property.value.integer2 = (unsigned short)value;
    MQTTProperties_add(properties, &property);
}

static void add_text(MQTTProperties *properties, enum MQTTPropertyCodes code, char *text)
{
    MQTTProperty property = {.identifier = code};
    char *value = NULL;
    if (!*text)
        return;
    if (code == MQTTPROPERTY_CODE_USER_PROPERTY && (value = strchr(text, ':'))) {
        *value++ = 0;
        property.value.value = (MQTTLenString){(int)strlen(value), value};
    }
    property.value.data = (MQTTLenString){(int)strlen(text), text};
    MQTTProperties_add(properties, &property);
}

static void must(int code, struct client *client, const char *what)
{
    if (code != MQTTASYNC_SUCCESS) {
        char why[80];
        snprintf(why, sizeof why, "%s: %s", what, MQTTAsync_strerror(code));
        tell("failed", client, "why", why);
    }
}

static struct client *named(void)
{
    for (int i = 0; i < client_count; i++)
        if (!strcmp(clients[i].name, field("client")))
            return &clients[i];
    if (client_count == CLIENTS)
        exit(2);
    clients[client_count].name = strdup(field("client"));
    return &clients[client_count++];
}

static void do_open(struct client *client)
{
    int is_5 = (client->version = number("version")) == 5;
    MQTTAsync_createOptions create = MQTTAsync_createOptions_initializer;
    MQTTAsync_connectOptions plain = MQTTAsync_connectOptions_initializer, newer = MQTTAsync_connectOptions_initializer5;
    MQTTAsync_connectOptions options = is_5 ? newer : plain;
    MQTTAsync_willOptions will = MQTTAsync_willOptions_initializer;
    MQTTAsync_SSLOptions tls = MQTTAsync_SSLOptions_initializer;
    MQTTProperties properties = MQTTProperties_initializer;

    create.MQTTVersion = is_5 ? MQTTVERSION_5 : MQTTVERSION_3_1_1;
    create.sendWhileDisconnected = 1;
    create.maxBufferedMessages = 10000;
    must(MQTTAsync_createWithOptions(&client->handle, field("url"), field("id"), MQTTCLIENT_PERSISTENCE_NONE, NULL, &create),
         client, "create");
    must(MQTTAsync_setCallbacks(client->handle, client, NULL, arrived, NULL), client, "callbacks");
    options.automaticReconnect = 1;
    options.minRetryInterval = 1;
    options.maxRetryInterval = 2;
    options.context = client;
    if (is_5) {
        options.cleanstart = !number("expiry");
        options.onSuccess5 = opened5;
        options.onFailure5 = failed5;
        add_number(&properties, MQTTPROPERTY_CODE_SESSION_EXPIRY_INTERVAL, number("expiry"));
        if (number("aliases"))
            add_number(&properties, MQTTPROPERTY_CODE_TOPIC_ALIAS_MAXIMUM, number("aliases"));
        options.connectProperties = &properties;
    } else {
        options.MQTTVersion = MQTTVERSION_3_1_1;
        options.cleansession = !number("expiry");
        options.onSuccess = opened;
        options.onFailure = failed;
    }
    if (*field("will")) {
        will.topicName = field("will");
        will.message = field("words");
        will.qos = 1;
        options.will = &will;
    }
    if (*field("user")) {
        options.username = field("user");
        options.password = field("password");
    }
    if (*field("ca")) {
        tls.trustStore = field("ca");
        tls.verify = 1;
        if (*field("certificate")) {
            tls.keyStore = field("certificate");
            tls.privateKey = field("key");
        }
        options.ssl = &tls;
    }
    must(MQTTAsync_connect(client->handle, &options), client, "connect");
    MQTTProperties_free(&properties);
}

static void do_subscribe(struct client *client)
{
    MQTTAsync_callOptions call = MQTTAsync_callOptions_initializer;
    call.context = client;
    if (client->version == 5) {
        call.onSuccess5 = subscribed5;
        call.onFailure5 = failed5;
        add_text(&call.properties, MQTTPROPERTY_CODE_USER_PROPERTY, field("user"));
    } else {
        call.onSuccess = subscribed;
        call.onFailure = failed;
    }
    must(MQTTAsync_subscribe(client->handle, field("topic"), number("qos"), &call), client, "subscribe");
    MQTTProperties_free(&call.properties);
}

static int digit(char written) { return written <= '9' ? written - '0' : written - 'a' + 10; }

static void do_publish(struct client *client)
{
    MQTTAsync_callOptions call = MQTTAsync_callOptions_initializer;
    MQTTAsync_message message = MQTTAsync_message_initializer;
    char *written = field("payload"), *payload = malloc(strlen(written) / 2 + 1);
    for (; *written; written += 2)
        payload[message.payloadlen++] = (char)(digit(written[0]) << 4 | digit(written[1]));
    message.payload = payload;
    message.qos = number("qos");
    message.retained = number("retain");
    call.context = client;
    if (client->version == 5) {
        call.onSuccess5 = published5;
        call.onFailure5 = failed5;
        add_text(&message.properties, MQTTPROPERTY_CODE_USER_PROPERTY, field("user"));
        add_text(&message.properties, MQTTPROPERTY_CODE_RESPONSE_TOPIC, field("response"));
        add_text(&message.properties, MQTTPROPERTY_CODE_CORRELATION_DATA, field("correlation"));
        if (number("alias"))
            add_number(&message.properties, MQTTPROPERTY_CODE_TOPIC_ALIAS, number("alias"));
    } else {
        call.onSuccess = published;
        call.onFailure = failed;
    }
    must(MQTTAsync_sendMessage(client->handle, number("known") ? "" : field("topic"), &message, &call), client, "publish");
    MQTTProperties_free(&message.properties);
    free(payload);
}

static void do_close(struct client *client)
{
    MQTTAsync_disconnectOptions plain = MQTTAsync_disconnectOptions_initializer;
    MQTTAsync_disconnectOptions newer = MQTTAsync_disconnectOptions_initializer5;
    MQTTAsync_disconnectOptions options = client->version == 5 ? newer : plain;
    options.context = client;
    options.timeout = 10000;
    if (client->version == 5)
        options.onSuccess5 = closed5, options.onFailure5 = failed5;
    else
        options.onSuccess = closed, options.onFailure = failed;
    if (MQTTAsync_isConnected(client->handle))
        must(MQTTAsync_disconnect(client->handle, &options), client, "disconnect");
    else /* its link has broken, and it would connect again */
        MQTTAsync_destroy(&client->handle), tell("closed", client, "", "");
}

int main(void)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t length;
    while ((length = getline(&line, &size, stdin)) > 0) {
        char *rest = line, *word;
        line[length - 1] = 0;
        word = strsep(&rest, "\t");
        for (field_count = 0; rest && field_count < FIELDS; field_count++)
            fields[field_count] = strsep(&rest, "\t");
        if (!strcmp(word, "open"))
            do_open(named());
        else if (!strcmp(word, "subscribe"))
            do_subscribe(named());
        else if (!strcmp(word, "publish"))
            do_publish(named());
        else if (!strcmp(word, "close"))
            do_close(named());
    }
    return 0;
}
