// The first bytes of a connection: a client's and a server's handshake message, records, and the
// text of a secret. Every input is given to each parser.
#include "troika/net/handshake.h"
#include "tests/fuzz/fuzz.h"
#include "troika/base/error.h"
#include "troika/net/record.h"
#include "troika/net/secret.h"

namespace troika::fuzz {

using namespace net;

namespace {

constexpr const char* kListener = "fuzzed listener";

Secret secret() {
  return Secret::parse(std::string(64, 'a'), "the target");
}

}  // namespace

std::vector<std::string> seeds() {
  const ClientHandshake client(secret(), kListener);
  ServerHandshake server(secret(), kListener);
  const auto answer = server.answer(client.first_message());
  TROIKA_CHECK(answer.has_value(), "a right first message is answered");
  Sealer sealer(secret());
  return {client.first_message(), answer->message,
          sealer.seal("a record") + sealer.seal("and another"), std::string(64, 'b')};
}

void run(std::string_view input) {
  ServerHandshake(secret(), kListener).answer(input);
  static_cast<void>(ClientHandshake(secret(), kListener).finish(input));
  try {
    Secret::parse(input, "the input");
  } catch (const Error&) {
  }
  // In two pieces; the first byte says where the first one ends.
  const size_t cut = input.empty() ? 0 : static_cast<unsigned char>(input[0]) % (input.size() + 1);
  Opener opener(secret());
  std::string text;
  opener.open(input.substr(0, cut), text);
  opener.open(input.substr(cut), text);
}

}  // namespace troika::fuzz
