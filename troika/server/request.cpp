#include "troika/server/request.h"

#include "troika/server/wire.h"

namespace troika::server {

void write_head(const RequestHead& head, std::string& to) {
  Writer writer(to);
  writer.number(head.generation);
  writer.number(head.worker);
  writer.number(head.number);
  writer.number(head.floor);
  writer.number(head.step);
  writer.number(head.committed);
  writer.number<uint64_t>(head.range);
}

void write_body(const RequestBody& body, std::string& to) {
  Writer writer(to);
  writer.number<uint32_t>(body.table);
  writer.number<uint32_t>(static_cast<uint32_t>(body.operation));
  writer.number(body.run.first);
  writer.number(body.run.count);
  writer.array(body.keys);
  writer.array(body.lengths);
  writer.array(body.values);
}

Request parse_request(std::string_view message) {
  Reader reader(message);
  Request request;
  auto& [head, body] = request;
  head.generation = reader.number<uint64_t>();
  head.worker = reader.number<uint64_t>();
  head.number = reader.number<uint64_t>();
  head.floor = reader.number<uint64_t>();
  head.step = reader.number<int64_t>();
  head.committed = reader.number<int64_t>();
  head.range = static_cast<uint32_t>(reader.number<uint64_t>());
  body.table = reader.number<uint32_t>();
  const auto operation = reader.number<uint32_t>();
  if (operation > static_cast<uint32_t>(Operation::assign)) {
    throw Error("server", ErrorKind::failure,
                {.what = "unknown operation in a request", .got = std::to_string(operation)});
  }
  body.operation = static_cast<Operation>(operation);
  body.run.first = reader.number<uint64_t>();
  body.run.count = reader.number<uint64_t>();
  body.keys = reader.array<Key>();
  body.lengths = reader.array<uint32_t>();
  body.values = reader.array<char>();
  return request;
}

void write_answer(const Answer& answer, std::string& to) {
  Writer writer(to);
  writer.number(answer.worker);
  writer.number(answer.number);
  writer.number<uint64_t>(answer.range);
  writer.text(answer.error);
  writer.array(answer.lengths);
  writer.array(answer.values);
}

Answer parse_answer(std::string_view message) {
  Reader reader(message);
  Answer answer;
  answer.worker = reader.number<uint64_t>();
  answer.number = reader.number<uint64_t>();
  answer.range = static_cast<uint32_t>(reader.number<uint64_t>());
  answer.error = reader.text();
  answer.lengths = reader.array<uint32_t>();
  answer.values = reader.array<char>();
  return answer;
}

}  // namespace troika::server
