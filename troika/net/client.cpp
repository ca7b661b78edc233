#include "troika/net/client.h"

#include "troika/net/socket.h"

namespace troika::net {

namespace {

// The beginning of what another program said.
std::string shown(std::string_view bytes) {
  std::string text;
  for (const char c : bytes.substr(0, 24)) text += c >= ' ' && c <= '~' ? c : '?';
  return text;
}

}  // namespace

Greeting greet(int socket, const Secret& secret, const std::string& listener, Deadline deadline) {
  const ClientHandshake handshake(secret, listener);
  std::string_view unsent = handshake.first_message();
  std::string answer, reason;
  while (true) {
    // A server that ends the connection may have said something before.
    std::string unsent_reason;
    const bool sends = send_some(socket, unsent, unsent_reason);
    const short events = static_cast<short>(sends && !unsent.empty() ? POLLIN | POLLOUT : POLLIN);
    if (!wait_for(socket, events, deadline)) return {Proof::silent, {}, ""};
    const bool open = receive(socket, answer, reason);
    if (!may_begin(answer, kServerMagic)) return {Proof::foreign, {}, shown(answer)};
    if (answer.size() >= kHandshakeSize) {
      // The server says no more before it has heard us.
      auto keys = handshake.finish(answer);
      return {keys ? Proof::given : Proof::wrong, std::move(keys), ""};
    }
    if (!open) return {Proof::refused, {}, reason};
  }
}

}  // namespace troika::net
