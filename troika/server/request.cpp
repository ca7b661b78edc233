#include "troika/server/request.h"

#include <cmath>
#include <limits>

#include "troika/base/error.h"
#include "troika/server/wire.h"

namespace troika::server {

namespace {

enum Flags : uint8_t {
  kKeysPacked = 1,
  kValuesPacked = 2,
  kPacksAnswer = 4,
  kKeysAbsent = 8,
  kAnswerPacked = 16,
  kKeptKeys = 32,
  kLacksKeys = 64,
};

[[noreturn]] void fail_request(const std::string& what, uint64_t got) {
  throw Error("server", ErrorKind::failure, {.what = what, .got = std::to_string(got)});
}

ValueForm parse_form(uint8_t number) {
  if (number > static_cast<uint8_t>(ValueForm::last))
    fail_request("unknown form of values", number);
  return static_cast<ValueForm>(number);
}

std::span<const char> chars_of(std::span<const Key> keys) {
  return {reinterpret_cast<const char*>(keys.data()), keys.size_bytes()};
}

Message keys_part(std::span<const char> keys) {
  std::string text;
  Writer writer(text);
  writer.array(keys);
  writer.pad();
  return std::make_shared<const std::string>(std::move(text));
}

}  // namespace

const char* phrase_of(Operation operation) {
  switch (operation) {
    case Operation::push:
      return "push to";
    case Operation::pull:
      return "pull from";
    case Operation::push_pull:
      return "push and pull of";
    case Operation::pull_state:
      return "pull of states from";
    case Operation::assign_state:
      return "assignment of states to";
    case Operation::compute:
      return "vector operations on";
    case Operation::assign:
      break;
  }
  return "assignment to";
}

void check_step(int64_t step) {
  if (step < -1 || step > kMostStep) {
    throw Error("server", ErrorKind::failure,
                {.what = "a step in a message",
                 .got = std::to_string(step),
                 .expected = "-1 to " + std::to_string(kMostStep)});
  }
}

void write_head(const RequestHead& head, std::string& to) {
  Writer writer(to);
  const auto& coding = head.coding;
  writer.number(head.generation);
  writer.number(head.worker);
  writer.number(head.number);
  writer.number(head.floor);
  writer.number(head.step);
  writer.number(head.committed);
  writer.number(head.range);
  writer.number(head.table);
  writer.number(head.operation);
  writer.number(coding.values);
  writer.number(coding.answer_values);
  writer.number(static_cast<uint8_t>(
      (coding.keys_are_packed ? kKeysPacked : 0) | (coding.values_are_packed ? kValuesPacked : 0) |
      (coding.packs_answer ? kPacksAnswer : 0) | (coding.keys_are_absent ? kKeysAbsent : 0)));
  writer.number<uint32_t>(0);
  writer.number(coding.signature);
  writer.number(head.run.first);
  writer.number(head.run.count);
  writer.number(head.rate.value_or(std::numeric_limits<double>::quiet_NaN()));
}

RequestHead parse_head(std::string_view message) {
  Reader reader(message);
  RequestHead head;
  head.generation = reader.number<uint64_t>();
  head.worker = reader.number<uint64_t>();
  head.number = reader.number<uint64_t>();
  head.floor = reader.number<uint64_t>();
  head.step = reader.number<int64_t>();
  head.committed = reader.number<int64_t>();
  check_step(head.step);
  check_step(head.committed);
  head.range = reader.number<uint32_t>();
  head.table = reader.number<uint32_t>();
  const auto operation = reader.number<uint8_t>();
  if (operation > static_cast<uint8_t>(Operation::compute)) {
    fail_request("unknown operation in a request", operation);
  }
  head.operation = static_cast<Operation>(operation);
  auto& coding = head.coding;
  coding.values = parse_form(reader.number<uint8_t>());
  coding.answer_values = parse_form(reader.number<uint8_t>());
  const auto flags = reader.number<uint8_t>();
  coding.keys_are_packed = flags & kKeysPacked;
  coding.values_are_packed = flags & kValuesPacked;
  coding.packs_answer = flags & kPacksAnswer;
  coding.keys_are_absent = flags & kKeysAbsent;
  reader.number<uint32_t>();
  coding.signature = reader.number<uint64_t>();
  head.run.first = reader.number<uint64_t>();
  head.run.count = reader.number<uint64_t>();
  const auto rate = reader.number<double>();
  if (!std::isnan(rate)) head.rate = rate;
  return head;
}

RequestParts make_parts(const RequestBody& body, ValueType type, Coding& coding, uint64_t seed,
                        std::shared_ptr<const void> owner) {
  RequestParts parts;
  std::string packed;
  std::span<const char> keys = chars_of(body.keys);
  if (keys.empty()) coding.signature = 0;
  coding.keys_are_packed = coding.keys_are_packed && pack(keys, packed);
  if (coding.keys_are_packed) keys = packed;
  parts.keys = keys.empty() ? absent_keys() : keys_part(keys);

  std::string encoded, packed_values;
  std::span<const char> values = body.values;
  if (!encode_values(coding.values, type, values, seed, encoded)) coding.values = ValueForm::plain;
  if (coding.values != ValueForm::plain) values = encoded;
  coding.values_are_packed = coding.values_are_packed && pack(values, packed_values);
  if (coding.values_are_packed) values = packed_values;
  std::string rest;
  Writer writer(rest);
  writer.array(body.lengths);
  const bool is_plain = coding.values == ValueForm::plain && !coding.values_are_packed;
  if (owner && is_plain) {
    writer.array_head(values.size());
    parts.values = {{values.data(), values.size()}, std::move(owner)};
  } else {
    writer.array(values);
  }
  parts.rest = std::make_shared<const std::string>(std::move(rest));
  parts.plain_bytes = kRequestHead + 3 * sizeof(uint64_t) + body.keys.size_bytes() +
                      body.lengths.size_bytes() + body.values.size();
  return parts;
}

const Message& absent_keys() {
  static const Message part = keys_part({});
  return part;
}

Request parse_request(std::string_view message) {
  Request request{.head = parse_head(message), .body = {}};
  if (!request.head.coding.is_plain())
    fail_request("an encoded request where a plain one is expected", 1);
  Reader reader(message.substr(kRequestHead));
  auto& body = request.body;
  body.operation = request.head.operation;
  body.table = request.head.table;
  body.run = request.head.run;
  body.rate = request.head.rate;
  const auto keys = reader.array<char>();
  if (keys.size() % sizeof(Key) != 0) fail_request("the bytes of a request's keys", keys.size());
  body.keys = {reinterpret_cast<const Key*>(keys.data()), keys.size() / sizeof(Key)};
  reader.skip_pad();
  body.lengths = reader.array<uint32_t>();
  body.values = reader.array<char>();
  return request;
}

std::string plain_message(RequestHead head, const RequestBody& body) {
  head.coding = {};
  head.operation = body.operation;
  head.table = body.table;
  head.run = body.run;
  head.rate = body.rate;
  std::string text;
  text.reserve(kRequestHead + 64 + body.keys.size_bytes() + body.lengths.size_bytes() +
               body.values.size());
  write_head(head, text);
  Writer writer(text);
  writer.array(chars_of(body.keys));
  writer.pad();
  writer.array(body.lengths);
  writer.array(body.values);
  return text;
}

std::string decode_request(std::string_view message, ValueType type, std::span<const Key> keys) {
  const auto head = parse_head(message);
  const auto& coding = head.coding;
  Reader reader(message.substr(kRequestHead));
  RequestBody body{.operation = head.operation, .table = head.table, .run = head.run};
  body.rate = head.rate;
  auto sent_keys = reader.array<char>();
  std::string unpacked_keys, unpacked, decoded;
  if (coding.keys_are_packed && !coding.keys_are_absent) {
    unpack(sent_keys, unpacked_keys);
    sent_keys = unpacked_keys;
  }
  if (sent_keys.size() % sizeof(Key) != 0)
    fail_request("the bytes of a request's keys", sent_keys.size());
  body.keys = {reinterpret_cast<const Key*>(sent_keys.data()), sent_keys.size() / sizeof(Key)};
  if (coding.keys_are_absent) body.keys = keys;
  reader.skip_pad();
  body.lengths = reader.array<uint32_t>();
  body.values = reader.array<char>();
  if (coding.values_are_packed) {
    unpack(body.values, unpacked);
    body.values = unpacked;
  }
  if (coding.values != ValueForm::plain) {
    decode_values(coding.values, type, body.values, decoded);
    body.values = decoded;
  }
  return plain_message(head, body);
}

void write_answer_head(const Answer& answer, size_t bytes, std::string& to) {
  Writer writer(to);
  writer.number(answer.worker);
  writer.number(answer.number);
  writer.number(answer.range);
  writer.number(answer.form);
  writer.number(static_cast<uint8_t>((answer.is_packed ? kAnswerPacked : 0) |
                                     (answer.has_kept_keys ? kKeptKeys : 0) |
                                     (answer.lacks_keys ? kLacksKeys : 0)));
  writer.number<uint16_t>(0);
  writer.text(answer.error);
  writer.array(answer.lengths);
  writer.array_head(bytes);
}

void write_answer(const Answer& answer, ValueType type, const Coding& coding, uint64_t seed,
                  std::string& to) {
  std::string encoded, packed;
  auto values = answer.values;
  ValueForm form = coding.answer_values;
  if (!encode_values(form, type, values, seed, encoded)) form = ValueForm::plain;
  if (form != ValueForm::plain) values = encoded;
  Answer sent = answer;
  sent.form = form;
  sent.is_packed = coding.packs_answer && pack(values, packed);
  if (sent.is_packed) values = packed;
  write_answer_head(sent, values.size(), to);
  to.append(values.data(), values.size());
}

Answer parse_answer(std::string_view message) {
  Reader reader(message);
  Answer answer;
  answer.worker = reader.number<uint64_t>();
  answer.number = reader.number<uint64_t>();
  answer.range = reader.number<uint32_t>();
  answer.form = parse_form(reader.number<uint8_t>());
  const auto flags = reader.number<uint8_t>();
  answer.is_packed = flags & kAnswerPacked;
  answer.has_kept_keys = flags & kKeptKeys;
  answer.lacks_keys = flags & kLacksKeys;
  reader.number<uint16_t>();
  answer.error = reader.text();
  answer.lengths = reader.array<uint32_t>();
  answer.values = reader.array<char>();
  return answer;
}

std::string decode_answer(const Answer& answer, ValueType type) {
  Answer plain = answer;
  std::string unpacked, decoded, text;
  if (answer.is_packed) {
    unpack(answer.values, unpacked);
    plain.values = unpacked;
  }
  if (answer.form != ValueForm::plain) {
    decode_values(answer.form, type, plain.values, decoded);
    plain.values = decoded;
  }
  write_answer(plain, type, {}, 0, text);
  return text;
}

}  // namespace troika::server
