"""What the engine over MQTT takes: bytes on the socket, milliseconds of a round, updates a second, memory, crashes."""
