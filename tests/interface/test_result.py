"""Result codes have the numbers of Level Zero; a fault says what, found, expected, next step."""

from __future__ import annotations

import msgspec

from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse

_LEVEL_ZERO = {
    "SUCCESS": 0x0,
    "NOT_READY": 0x1,
    "ERROR_DEVICE_LOST": 0x70000001,
    "ERROR_OUT_OF_HOST_MEMORY": 0x70000002,
    "ERROR_OUT_OF_DEVICE_MEMORY": 0x70000003,
    "ERROR_MODULE_BUILD_FAILURE": 0x70000004,
    "ERROR_MODULE_LINK_FAILURE": 0x70000005,
    "ERROR_INSUFFICIENT_PERMISSIONS": 0x70010000,
    "ERROR_NOT_AVAILABLE": 0x70010001,
    "ERROR_DEPENDENCY_UNAVAILABLE": 0x70020000,
    "ERROR_UNINITIALIZED": 0x78000001,
    "ERROR_UNSUPPORTED_VERSION": 0x78000002,
    "ERROR_UNSUPPORTED_FEATURE": 0x78000003,
    "ERROR_INVALID_ARGUMENT": 0x78000004,
    "ERROR_INVALID_NULL_HANDLE": 0x78000005,
    "ERROR_HANDLE_OBJECT_IN_USE": 0x78000006,
    "ERROR_INVALID_NULL_POINTER": 0x78000007,
    "ERROR_INVALID_SIZE": 0x78000008,
    "ERROR_UNSUPPORTED_SIZE": 0x78000009,
    "ERROR_UNSUPPORTED_ALIGNMENT": 0x7800000A,
    "ERROR_INVALID_SYNCHRONIZATION_OBJECT": 0x7800000B,
    "ERROR_INVALID_ENUMERATION": 0x7800000C,
    "ERROR_UNSUPPORTED_ENUMERATION": 0x7800000D,
    "ERROR_INVALID_NATIVE_BINARY": 0x7800000F,
    "ERROR_UNKNOWN": 0x7FFFFFFE,
}
_FULL = ErrorInfo(
    result=0x78000004, object="queue", found="3 slots", expected="a power of two", hint="ask for 4"
)
_FULL_BYTES = bytes.fromhex(
    "85a6726573756c74ce78000004a66f626a656374a57175657565a5666f756e64a73320736c6f7473"
    "a86578706563746564ae6120706f776572206f662074776fa468696e74a961736b20666f722034"
)
_MINIMAL_BYTES = bytes.fromhex("83a6726573756c74ce70000001a66f626a656374a6646576696365a5666f756e64a4676f6e65")


def test_codes_have_the_names_and_numbers_of_level_zero() -> None:
    assert {code.name: code.value for code in ZeResult} == _LEVEL_ZERO


def test_a_fault_keeps_its_bytes() -> None:
    assert msgspec.msgpack.encode(_FULL) == _FULL_BYTES
    assert msgspec.msgpack.decode(_FULL_BYTES, type=ErrorInfo) == _FULL


def test_empty_optional_fields_are_not_sent() -> None:
    info = ErrorInfo(result=int(ZeResult.ERROR_DEVICE_LOST), object="device", found="gone")
    assert msgspec.msgpack.encode(info) == _MINIMAL_BYTES
    assert msgspec.msgpack.decode(_MINIMAL_BYTES, type=ErrorInfo) == info


def test_a_fault_reads_as_object_found_expected_next_step() -> None:
    assert str(_FULL) == "queue: 3 slots; expected a power of two. Ask for 4"
    assert _FULL.name == "ZE_RESULT_ERROR_INVALID_ARGUMENT"


def test_an_unknown_code_still_decodes_and_shows_its_number() -> None:
    body = msgspec.msgpack.encode({"result": 0x7800ABCD, "object": "device", "found": "something new"})
    assert msgspec.msgpack.decode(body, type=ErrorInfo).name == "ze_result_t 0x7800abcd"


def test_a_refusal_carries_its_fault_and_says_it() -> None:
    error = refuse(ZeResult.ERROR_INVALID_SIZE, "ring", found="0 slots", expected="2 at least")
    assert isinstance(error, Refused)
    assert error.info == ErrorInfo(result=0x78000008, object="ring", found="0 slots", expected="2 at least")
    assert str(error) == "ZE_RESULT_ERROR_INVALID_SIZE: ring: 0 slots; expected 2 at least"
